"""Kubernetes manifests against the published schemas of some versions, where no unknown field is allowed. Prints JSON: kind and name of each, and
whether a field with a typing error is refused.

    manifests.py FOLDER
"""
import copy
import glob
import json
import sys

import kubernetes_validate
import yaml

VERSIONS = ("1.25", "1.37")


def main(folder):
    found, refused = [], []
    for path in sorted(glob.glob(f"{folder}/*.yaml")):
        with open(path, encoding="utf-8") as file:
            for manifest in yaml.safe_load_all(file):
                for version in VERSIONS:
                    kubernetes_validate.validate(manifest, version, strict=True)
                found.append([manifest["kind"], manifest["metadata"]["name"]])
                wrong = copy.deepcopy(manifest)
                wrong["metadata"]["nmae"] = "x"
                try:
                    kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)
                except kubernetes_validate.ValidationError:
                    refused.append(manifest["kind"])
    print(json.dumps({"found": found, "refused": refused}))


main(sys.argv[1])

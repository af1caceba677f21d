#!/usr/bin/env python3
"""Writes OUT_DIR/libopapi.so.c with every aclnn operator that one of the libraries names.

usage: gen_opapi.py OUT_DIR LIBRARY.so ...

Phase one (aclnnXGetWorkspaceSize) succeeds and leaves workspace 0 and a null executor, unless stubs/opapi.c has it;
phase two (aclnnX) goes through stub_op_run, which launches one kernel of that name.
"""
import os
import re
import sys

PHASE_ONE = "GetWorkspaceSize"


def main():
    out, *libraries = sys.argv[1:]
    texts = []
    for library in libraries:
        with open(library, "rb") as file:
            texts += re.findall(rb"(?<![A-Za-z0-9_])aclnn[A-Z][A-Za-z0-9]*(?=\0)", file.read())
    names = sorted({text.decode().removesuffix(PHASE_ONE) for text in texts})
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "libopapi.so.c"), "w") as file:
        file.write("int stub_op_run(const char *, void *, unsigned long, void *, void *);\n")
        for name in names:
            file.write(
                f"__attribute__((weak)) int {name}(void *workspace, unsigned long size, void *executor, void *stream)\n"
                f'{{ return stub_op_run("{name}", workspace, size, executor, stream); }}\n'
                f"__attribute__((weak)) int {name}{PHASE_ONE}(void) {{ return 0; }}\n"
            )
    print(f"{len(names)} aclnn operators")


if __name__ == "__main__":
    main()

"""The tables of FSDP's functions on the torch that is there: each is wrapped once when its module is imported, labels end with an exception,
and nothing is left afterwards.

Prints a line for each function: by how many wrappers it has more while there are hooks.
"""
import importlib

import torch

import msmemscope
from memscope_bpf import _hooks
from memscope_bpf._native import native

COMPONENTS = ("fsdp1", "fsdp2")


def places():
    """Every function of the tables, in every module that has it by name."""
    for component in COMPONENTS:
        rows = _hooks._table()["pytorch"]["components"][component]
        for place in _hooks.rows_for(rows, torch.__version__, "decompose"):
            for key in ("at", "open", "close"):
                if key in place:
                    yield place[key]
                    for module in place.get("also_in", ()):
                        yield module + ":" + place[key].split(":")[1]


def find(place):
    module, _, path = place.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return getattr(found, "__func__", found)


def depth(function):
    """How many times it is wrapped, by whomever."""
    depth = 0
    while hasattr(function, "__wrapped__"):
        function, depth = function.__wrapped__, depth + 1
    return depth


def labels_left_by(functions):
    """None of them takes this: each raises."""
    left = []
    for function in functions:
        try:
            function(no_such_argument=None)
            left.append("no exception")
        except Exception:
            left += [label for label in native.current_labels() if label]
    return left


for component in COMPONENTS:
    msmemscope.init_framework_hooks("pytorch", torch.__version__, component, "decompose")
hooked = {place: find(place) for place in places()}
depths = {place: depth(function) for place, function in hooked.items()}
print("left", labels_left_by(hooked.values()))
msmemscope.cleanup_framework_hooks()
print("left", labels_left_by(hooked.values()))
for place in sorted(hooked):
    print("place", place, depths[place] - depth(find(place)))
print("torch", torch.__version__)

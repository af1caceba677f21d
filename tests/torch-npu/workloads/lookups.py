"""Looks up what a tracer says holds the blocks: each path is followed from its module on, as Python does it.

`waits()` prints `CASES`, as `holders.py` does, with the blocks of all tensors that Python knows, and `waiting`. A file `paths.json` in the folder TRUTH then has
paths and their blocks, `[[PATH, [ADDRESS, …]], …]`. Answered is a line `LOOKED UP` with how many paths lead there (`right`), how many
are no expressions of Python (`unreadable`), and those that lead elsewhere (`wrong`).
"""
import gc
import json
import os
import re
import sys
import time

import torch

FOLDER = os.environ["TRUTH"]
STEP = re.compile(r"\.(\w+)|\[(\d+)\]|\[('(?:[^'\\]|\\.)*')\]|\[(\*)\]")


def blocks():
    """All tensors on a device, one for each block: what they are and where."""
    gc.unfreeze()
    gc.collect()
    found = {}
    for one in gc.get_objects():
        if not issubclass(type(one), torch.Tensor):
            continue
        try:
            storage = one.untyped_storage()
            start = storage.data_ptr() if storage.device.type == "npu" and storage.size() else 0
        except (NotImplementedError, RuntimeError):
            # A tensor of a compiler's, which has no memory.
            continue
        if start:
            found.setdefault(start, f"{list(one.shape)} {one.dtype}")
    return found


def items(value):
    return list(value.values() if isinstance(value, dict) else value)


def steps(path):
    """The steps from a module on; `None` if they are no expression of Python, or if the class is in no variable of its module."""
    module = next((name for name in prefixes(path.removeprefix("class ")) if name in sys.modules), None)
    if module is None:
        return None
    found, at = [sys.modules[module]], len(path) - len(path.removeprefix("class ")) + len(module)
    while at < len(path):
        step = STEP.match(path, at)
        # A long key is cut.
        if step is None or "…" in step[0]:
            return None
        found.append(step.groups())
        at = step.end()
    is_class = path.startswith("class ")
    return None if is_class and not hasattr(found[0], found[1][0]) else found


def prefixes(path):
    names = re.match(r"[\w.]*", path)[0].split(".")
    return [".".join(names[:count]) for count in range(len(names), 0, -1)]


def follow(module, steps):
    """The objects that steps lead to: more than one where there is `[*]`."""
    found = [module]
    for name, number, key, every in steps:
        if name:
            found = [getattr(value, name) for value in found]
        elif every:
            found = [item for value in found for item in items(value)]
        else:
            found = [value[int(number) if number else eval(key)] for value in found]
    return found


def address(value):
    if isinstance(value, torch.Tensor):
        value = value.untyped_storage()
    return value.data_ptr() if isinstance(value, torch.UntypedStorage) else None


def waits(cases=()):
    """`cases`: those with a name."""
    torch.npu.synchronize()
    named = {start for _, start, _ in cases}
    others = [[what, start, ""] for start, what in blocks().items() if start not in named]
    print("CASES " + json.dumps([*cases, *others]), flush=True)
    print("waiting", flush=True)
    asked = os.path.join(FOLDER, "paths.json")
    while not os.path.exists(asked):
        time.sleep(0.02)
    with open(asked, encoding="utf-8") as file:
        paths = json.load(file)
    right, unreadable, wrong = 0, 0, []
    for path, starts in paths:
        known = steps(path)
        if known is None:
            unreadable += 1
            continue
        try:
            held = {address(value) for value in follow(known[0], known[1:])}
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            wrong.append([path, repr(error)])
            continue
        if held.issuperset(starts):
            right += 1
        else:
            wrong.append([path, f"{held}, not {starts}"])
    print("LOOKED UP " + json.dumps({"right": right, "unreadable": unreadable, "wrong": wrong}), flush=True)

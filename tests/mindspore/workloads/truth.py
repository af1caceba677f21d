"""What MindSpore says of its pool, for comparison with a trace of the same process.

Into the folder TRUTH goes `marks.jsonl`, one line for each mark. A mark is a moment at which nothing is under way: `mstxMarkA` is called
with the text `truth NAME`, so that it stands among the rows, and no clocks need to be compared.
"""
import ctypes
import json
import os
import time

import mindspore

FOLDER = os.environ["TRUTH"]

mstx = ctypes.CDLL("libms_tools_ext.so")
mstx.mstxMarkA.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
mstx.mstxMarkA.restype = None

marks = open(os.path.join(FOLDER, "marks.jsonl"), "w", encoding="ascii")


def figures():
    """Bytes: handed out, held from the runtime, and the most of the first so far."""
    stats = mindspore.hal.memory_stats()
    return [stats[f"{key}_memory"] for key in ("total_allocated", "total_reserved", "max_allocated")]


def mark(name):
    """Takes the figures, once all work is done and its blocks are back."""
    mindspore.runtime.synchronize()
    before = figures()
    mstx.mstxMarkA(f"truth {name}".encode("ascii"), None)
    after = figures()
    assert before == after, f"blocks came or went at mark {name}: {before}, {after}"
    allocated, reserved, max_allocated = after
    line = {"name": name, "pid": os.getpid(), "allocated_bytes": allocated, "reserved_bytes": reserved}
    marks.write(json.dumps(line | {"max_allocated_bytes": max_allocated}) + "\n")
    marks.flush()


def wait_for_tracer():
    """Says that a tracer may attach, and goes on when the file `go` is there."""
    print("waiting", flush=True)
    while not os.path.exists(os.path.join(FOLDER, "go")):
        time.sleep(0.02)

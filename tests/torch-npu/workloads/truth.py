"""What torch_npu itself says of its memory, for comparison with a trace of the same process.

Into the folder TRUTH go `marks.jsonl`, one line for each mark, and at the end `history.json`, the allocator's history.

A mark is a moment at which nothing is under way. The statistics of each device are taken at it, and in the trace it is a
mark of its own (`mstxMarkA`), so that what came before it is known without comparing clocks.
"""
import ctypes
import json
import os
import shutil
import sys
import time

import torch
import torch_npu
from torch_npu.npu import memory

FOLDER = os.environ["TRUTH"]
ENTRIES = 1_000_000
FIGURES = (
    "active_bytes.all.current",
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "allocation.all.allocated",
    "allocation.all.freed",
    "num_alloc_retries",
    "num_ooms",
    "requested_bytes.all.current",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "segment.all.allocated",
    "segment.all.current",
)

mstx = ctypes.CDLL("libms_tools_ext.so")
mstx.mstxMarkA.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
mstx.mstxMarkA.restype = None

marks = open(os.path.join(FOLDER, "marks.jsonl"), "w", encoding="ascii")


def start(device=0):
    """Begins the history. Before it lies one block, which is gone at that moment."""
    torch.npu.set_device(device)
    torch.empty(1, device="npu")
    torch.npu.synchronize()
    memory._record_memory_history(enabled="all", context=None, max_entries=ENTRIES)
    mark("start")


def mark(name):
    """Takes the statistics."""
    # Of the current device: one that no operator has run on must not be touched, or a later backward pass dies in 2.14.
    torch.npu.synchronize()
    devices = {}
    mstx.mstxMarkA(f"truth {name}".encode("ascii"), None)
    for device in range(torch.npu.device_count()):
        stats = torch.npu.memory_stats(device)
        devices[device] = {key: stats[key] for key in FIGURES} if stats else {}
    line = {"name": name, "pid": os.getpid(), "devices": devices}
    line["history"], line["workspaces"] = zip(*[(len(happened), spaces) for happened, spaces in histories()])
    marks.write(json.dumps(line) + "\n")
    marks.flush()


def histories():
    """Of each device: the operations on its memory since the start, and the workspaces that are live."""
    return [split(trace) for trace in memory._snapshot()["device_traces"]]


def split(trace):
    """A snapshot adds to a trace itself, and each live workspace as if it had come just then."""
    happened, workspaces = [], {}
    last = None
    for entry in trace:
        if entry["action"] == "workspace_snapshot":
            last = entry["addr"]
            workspaces[last] = entry["size"]
        elif last is not None and entry["addr"] == last and entry["action"] in ("segment_alloc", "alloc"):
            continue
        elif entry["action"] != "snapshot":
            last = None
            happened.append({key: entry[key] for key in ("action", "addr", "size") if key in entry})
    return happened, workspaces


def wait_for_tracer():
    """Where a tracer is to be attached: goes on when the folder has a file `go`."""
    torch.npu.synchronize()
    print("waiting", flush=True)
    while not os.path.exists(os.path.join(FOLDER, "go")):
        time.sleep(0.02)


def finish():
    """Takes the statistics for the last time, and writes the history."""
    mark("end")
    shutil.copyfile("/proc/self/maps", os.path.join(FOLDER, "maps"))
    kept = [happened for happened, _ in histories()]
    if any(len(history) >= ENTRIES for history in kept):
        sys.exit("the history is not complete")
    with open(os.path.join(FOLDER, "history.json"), "w", encoding="ascii") as file:
        json.dump(kept, file)

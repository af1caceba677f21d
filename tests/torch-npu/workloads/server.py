"""A server: a small model answers requests of a seeded length, by the clock, so that how busy the machine is changes nothing.

usage: server.py grows|steady RATE MOST SEED

Prints `waiting` when it has served some, and goes on when the folder TRUTH has a file `go`. `grows` keeps RATE tensors of 256 KiB a second and ends
when it has kept MOST; `steady` keeps the last MOST ones, and ends after 15 s. After each request a line of its own book, `book.jsonl`, has the time
and the highest figures that torch_npu had since the line before.
"""
import json
import os
import random
import sys
import time
from collections import deque

import torch
import torch_npu
from torch import nn

kind, rate, most, seed = sys.argv[1], *map(int, sys.argv[2:5])
folder = os.environ["TRUTH"]
torch.npu.set_device(0)
torch.manual_seed(seed)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 16)).to("npu")
lengths = [32 * (number + 1) for number in range(4)]
random.Random(seed).shuffle(lengths)
inputs = [torch.randn(length, 64) for length in lengths]
kept = deque(maxlen=most)
book = open(os.path.join(folder, "book.jsonl"), "w", encoding="ascii")


def keep():
    kept.append(torch.empty(256 << 10, dtype=torch.uint8, device="npu"))


def serve(number):
    request = inputs[number % len(inputs)]
    with torch.no_grad():
        scratch = torch.empty(len(request) << 14, dtype=torch.uint8, device="npu")
        model(request.to("npu")).cpu()
    del scratch


def note():
    stats = torch.npu.memory_stats(0)
    line = {"time_ns": time.time_ns()}
    line |= {name: stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved")}
    book.write(json.dumps(line) + "\n")
    book.flush()
    torch.npu.reset_peak_memory_stats(0)


for number in range(64):
    serve(number)
    keep()
if kind == "steady":
    while len(kept) < most:
        keep()
note()
print("waiting", flush=True)
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.02)
before, start, number = len(kept), time.monotonic(), 0
while kind == "grows" or time.monotonic() < start + 15:
    wanted = before + int((time.monotonic() - start) * rate)
    if kind == "grows":
        while len(kept) < min(wanted, most):
            keep()
        if len(kept) == most:
            break
    else:
        keep()
    serve(number)
    number += 1
    note()
    time.sleep(0.01)
print(f"kept {len(kept)}", flush=True)

"""What the three pages on tasks are about, each with its own books: a server that grows, a request that fails, the memory of a training.

usage: tasks.py grows SECONDS | fills | trains STEPS

Prints `books` and figures: bytes as torch counts them at the place in question, and those of all blocks.
"""
import sys
import time

import torch
from torch import nn

KIB, MIB = 1 << 10, 1 << 20
history, weights, cache = [], [], []


def block(size):
    return torch.empty(size, dtype=torch.uint8, device="npu")


def held():
    torch.npu.synchronize()
    return torch.npu.memory_stats()["allocated_bytes.all.current"]


def remember():
    history.append(block(256 * KIB))  # grows


def serve(number):
    batch = block(MIB + number % 7 * 64 * KIB)
    if number % 5 == 0:
        remember()
    del batch


def grows(seconds):
    weights.extend(block(4 * MIB) for _ in range(8))
    before = held()
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        serve(number)
        number += 1
        time.sleep(0.01)
    print("books", held() - before, len(history))


def load():
    weights.extend(block(60 * MIB) for _ in range(8))


def put():
    cache.append(block(40 * MIB))  # fills


def prefill():
    return block(512 * MIB)  # asks


def fills():
    load()
    for _ in range(30):
        before = held()
        put()
    of_cache = (held() - before) * len(cache)
    try:
        prefill()
        raise SystemExit("there is no such device")
    except torch.OutOfMemoryError:
        print("books", of_cache, held())


def trains(steps):
    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024)).to("npu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(16, 1024).to("npu")
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    torch.npu.synchronize()
    storages = [p.untyped_storage().nbytes() for p in model.parameters()]
    states = [s.untyped_storage().nbytes() for of in optimizer.state.values() for s in of.values() if s.device.type == "npu"]
    print("books", sum(storages), sum(states), torch.npu.memory_stats()["allocated_bytes.all.peak"])


torch.npu.set_device(0)
mode = sys.argv[1]
{"grows": lambda: grows(float(sys.argv[2])), "fills": fills, "trains": lambda: trains(int(sys.argv[2]))}[mode]()

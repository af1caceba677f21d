"""Blocks of 64 MiB, each of a segment of its own, under labels: before collection, in nested ranges, in a decorated function, on two threads.

What each is for is its size: 64 MiB, and as many times 2 MiB as the case has for a number.
"""
import threading

import torch

import msmemscope
from msmemscope import describe

MIB = 1 << 20
torch.npu.set_device(0)
kept = []


def alloc(case):
    kept.append(torch.empty((64 + 2 * case) * MIB, dtype=torch.uint8, device="npu"))


@describe.describer(owner="decorated")
def decorated():
    alloc(5)


def other_thread():
    torch.npu.set_device(0)
    for _ in range(7):
        alloc(9)


msmemscope.config(events="alloc,free", analysis="decompose")
alloc(1)
msmemscope.start()
with describe.describer(owner="train"):
    alloc(2)
    with describe.describer(owner="inner"):
        alloc(3)
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
decorated()
alloc(9)
alloc(9)
weights = torch.empty(1 * MIB, dtype=torch.uint8, device="npu")
describe.describer(weights, owner="weights")
del weights
msmemscope.stop()

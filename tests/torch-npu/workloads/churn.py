"""Random blocks come and go: bytes to tens of MiB, two devices, two streams, copies, and the cache emptied.

usage: churn.py OPERATIONS [ATTACH_AT_OPERATION]
"""
import random
import sys

import truth
import torch

operations = int(sys.argv[1])
attach_at = int(sys.argv[2]) if len(sys.argv) > 2 else None
truth.start()
chance = random.Random(7)
side = torch.npu.Stream()
host = torch.arange(4096, dtype=torch.float32)
live = []


def allocate():
    size = int(2 ** chance.uniform(0, 24.5))
    device = 1 if chance.random() < 0.15 else 0
    live.append(torch.empty(size, dtype=torch.uint8, device=f"npu:{device}"))


def copy():
    there = host[: chance.randrange(1, 4096)].to("npu")
    assert torch.equal(there.cpu(), host[: there.numel()])


def share():
    """A block of one stream that another one uses: freed, and given back later."""
    with torch.npu.stream(side):
        block = torch.empty(chance.randrange(1, 1 << 20), dtype=torch.uint8, device="npu")
    block.record_stream(torch.npu.current_stream())


for operation in range(operations):
    if operation == attach_at:
        truth.wait_for_tracer()
        truth.mark("attached")
    what = chance.random()
    if what < 0.55 or not live:
        allocate()
    elif what < 0.90:
        live.pop(chance.randrange(len(live)))
    elif what < 0.95:
        copy()
    elif what < 0.98:
        share()
    elif what < 0.99:
        del live[: len(live) // 2]
        torch.npu.empty_cache()
        truth.mark(f"emptied at {operation}")
    if len(live) > 60:
        del live[:20]
    if operation % 200 == 199:
        truth.mark(f"operation {operation}")

live.clear()
truth.mark("freed")
torch.npu.empty_cache()
truth.finish()

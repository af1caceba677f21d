"""Blocks without a tensor, by the allocator's functions for other libraries, of sizes that it rounds up; the cache emptied, by both names from 2.13 on.

usage: raw.py ROUNDS
"""
import sys

import truth
import torch

rounds = int(sys.argv[1])
truth.start()
side = torch.npu.Stream()
live = []
for number in range(rounds):
    live.append(torch.npu.caching_allocator_alloc(1001 + 70_001 * number))
    live.append(torch.npu.caching_allocator_alloc(3 + number, stream=side))
    tensor = torch.empty(777 + number, dtype=torch.uint8, device="npu")
    truth.mark(f"round {number}")
    if number % 3 == 2:
        torch.npu.caching_allocator_delete(live.pop(0))
    if number % 5 == 4:
        torch.npu.empty_cache()
        if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
            torch.accelerator.empty_cache()
        truth.mark(f"emptied {number}")
while live:
    torch.npu.caching_allocator_delete(live.pop())
truth.finish()

"""A pool of the program's own for requests that would fail and one that splits no blocks, beside one without rules. Memory runs out on purpose.

usage: mempool_rules.py ROUNDS SEED

With a torch_npu without such pools it prints `no rules`.
"""
import random
import sys

import truth
import torch

MIB = 1 << 20
rounds, seed = int(sys.argv[1]), int(sys.argv[2])
truth.start()
chance = random.Random(seed)


def request(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="npu")


def fill():
    """What is left of the device, in the default pool."""
    blocks = []
    try:
        while True:
            blocks.append(request(256))
    except RuntimeError:
        return blocks


try:
    plain = torch.npu.MemPool()
    spare = torch.npu.MemPool(use_on_oom=True)
    whole = torch.npu.MemPool(no_split=True)
except TypeError:
    print("no rules")
    truth.finish()
    raise SystemExit

held = [request(chance.randint(1, 40)) for _ in range(6)]
for number in range(rounds):
    with torch.npu.use_mem_pool(plain):
        blocks = [request(chance.randint(2, 30)) for _ in range(3)]
        blocks.pop(chance.randrange(3))
        blocks.append(request(chance.choice([1, 2, 11])))
        blocks.append(torch.empty(chance.randrange(1, MIB // 2), dtype=torch.uint8, device="npu"))
    with torch.npu.use_mem_pool(spare):
        kept = [request(chance.randint(60, 200)) for _ in range(4)]
    del kept[chance.randrange(2):]
    with torch.npu.use_mem_pool(whole):
        # The second of each pair gets the block of the first one, whole.
        wide = [request(chance.randint(21, 60)) for _ in range(3)]
        wide.pop(chance.randrange(3))
        wide.append(request(chance.randint(1, 19)))
        wide.append(torch.empty(chance.randrange(1, MIB // 4), dtype=torch.uint8, device="npu"))
    filled = fill()
    for _ in range(3):
        try:
            filled.append(request(chance.randint(20, 300)))
        except RuntimeError:
            filled = filled[2:]
    held.append(request(chance.randint(1, 20)))
    held.pop(chance.randrange(len(held)))
    del blocks, kept, wide, filled
    if number % 3 == 2:
        torch.npu.empty_cache()
    truth.mark(f"round {number}")
held.clear()
del plain, spare, whole
truth.mark("pools gone")
truth.finish()

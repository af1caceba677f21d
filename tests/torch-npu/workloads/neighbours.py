"""Two processes on one device. The other one holds a part of it and gives it back half-way, so this one gets more than it was refused before.

usage: neighbours.py SEED

Prints the peaks that torch_npu has of this process: allocated and reserved bytes. With `other` it is the other one.
"""
import os
import random
import subprocess
import sys

import torch
import torch_npu

MIB = 1 << 20
torch.npu.set_device(0)


def request(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="npu")


def fill(mib):
    """What is left of the device, in blocks of that size."""
    blocks = []
    try:
        while True:
            blocks.append(request(mib))
    except RuntimeError:
        return blocks


if sys.argv[1] == "other":
    held = [request(150) for _ in range(6)]
    print("holds", flush=True)
    sys.stdin.readline()
    del held[2:]
    torch.npu.empty_cache()
    print("gone", flush=True)
    sys.stdin.readline()
    raise SystemExit

seeded = random.Random(int(sys.argv[1]))
command = [sys.executable, "-B", "-W", "ignore", os.path.abspath(__file__), "other"]
other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert other.stdout.readline() == "holds\n"
kept = [request(seeded.randint(1, 40)) for _ in range(8)]
for _ in range(2):
    blocks = fill(seeded.randint(50, 200))
    del blocks[::2]
    kept.append(request(seeded.randint(1, 30)))
    del blocks
other.stdin.write("\n")
other.stdin.flush()
assert other.stdout.readline() == "gone\n"
blocks = fill(seeded.randint(50, 200))
del blocks[1::2]
kept.append(request(seeded.randint(1, 40)))
other.stdin.write("\n")
other.stdin.flush()
other.wait()
stats = torch.npu.memory_stats(0)
print("peaks", stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"], flush=True)

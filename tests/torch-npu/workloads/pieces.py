"""Free pieces of torch_npu's pool, as its own table of blocks has them at the end.

usage: pieces.py KIND [SEED]

KIND is `whole` (all blocks of most segments are freed), `every_second` (half of the blocks of each segment), or `random`.
Prints a line with `PIECES` and figures of `memory_snapshot()`: bytes held and free, of segments without a block in use, the
largest free piece of the other segments, and the number of segments.
"""

import json
import os
import random
import sys

import torch
import torch_npu  # noqa: F401

MIB = 1 << 20


def blocks(sizes):
    """Blocks of these sizes."""
    return [torch.empty(size, dtype=torch.uint8, device="npu") for size in sizes]


def whole():
    """Ten blocks of 40 MiB, each with a segment of its own; nine go."""
    kept = blocks([40 * MIB] * 10)
    del kept[1:]
    return kept


def every_second():
    """Segments of 20 MiB with ten blocks each; every second one goes."""
    kept = blocks([2 * MIB] * 100)
    del kept[::2]
    return kept


def at_random(seed):
    """Blocks of all kinds of sizes come and go."""
    chosen = random.Random(seed)
    kept = []
    for _ in range(600):
        size = chosen.choice([512, 70_000, 700_000, 3 * MIB, 9 * MIB, 25 * MIB])
        kept += blocks([chosen.randint(1, size)])
        while len(kept) > chosen.randint(20, 120):
            kept.pop(chosen.randrange(len(kept)))
    del kept[:: chosen.randint(2, 4)]
    return kept


def pieces():
    """The figures of the pool's own table. Segments that follow each other in one reservation are one in it."""
    segments = torch.npu.memory_snapshot()
    held, free, unused, kept = 0, 0, 0, []
    for segment in segments:
        inactive = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        held += segment["total_size"]
        free += sum(inactive)
        if sum(inactive) == segment["total_size"]:
            unused += segment["total_size"]
        else:
            kept += inactive
    return {"held": held, "free": free, "unused": unused, "largest": max(kept, default=0), "segments": len(segments)}


def main():
    kind = sys.argv[1]
    make = {"whole": whole, "every_second": every_second, "random": lambda: at_random(int(sys.argv[2]))}[kind]
    kept = make()
    # Frees without a request after them would be a tear-down.
    kept += blocks([512])
    torch.npu.synchronize()
    print("PIECES " + json.dumps(pieces()), flush=True)
    os._exit(0 if kept else 1)


main()

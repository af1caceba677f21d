"""A program that waits for no tracer: random blocks come and go on two devices and two streams, as fast as it can, beside blocks that stay.

usage: busy.py BLOCKS_THAT_STAY

When the folder TRUTH has a file `stop`, it works a little longer, with marks, and ends. It keeps no history.
"""
import json
import os
import random
import sys

import truth
import torch

torch.npu.set_device(0)
chance = random.Random(11)
side = torch.npu.Stream()
kept = [torch.empty(1 << number % 23, dtype=torch.uint8, device=f"npu:{number % 2}") for number in range(int(sys.argv[1]))]
live = []


def work():
    what = chance.random()
    if what < 0.5 or not live:
        device = 1 if chance.random() < 0.2 else 0
        live.append(torch.empty(int(2 ** chance.uniform(0, 23)), dtype=torch.uint8, device=f"npu:{device}"))
    elif what < 0.95:
        live.pop(chance.randrange(len(live)))
    elif what < 0.99:
        with torch.npu.stream(side):
            block = torch.empty(chance.randrange(1, 1 << 20), dtype=torch.uint8, device="npu")
        block.record_stream(torch.npu.current_stream())
    else:
        torch.npu.empty_cache()
    if len(live) > 60:
        del live[:20]


truth.mark("before")
print("waiting", flush=True)
stop = os.path.join(truth.FOLDER, "stop")
while not os.path.exists(stop):
    for _ in range(20):
        work()
for part in range(4):
    for _ in range(100):
        work()
    truth.mark(f"part {part}")
kept.clear()
live.clear()
truth.mark("end")
with open(os.path.join(truth.FOLDER, "history.json"), "w", encoding="ascii") as file:
    json.dump([[], []], file)

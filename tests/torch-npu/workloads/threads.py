"""Four threads make requests at once, on both devices, and empty the caches. Prints the peaks that torch_npu has of its first device: allocated and
reserved bytes.

usage: threads.py COUNT SEED
"""
import random
import sys
import threading

import torch
import torch_npu

count, seed = int(sys.argv[1]), int(sys.argv[2])
torch.npu.set_device(0)


def work(number):
    seeded, live = random.Random(seed * 100 + number), []
    torch.npu.set_device(number % 2)
    for _ in range(count):
        if seeded.random() < 0.55 or not live:
            live.append(torch.empty(int(2 ** seeded.uniform(4, 23)), dtype=torch.uint8, device="npu"))
        else:
            live.pop(seeded.randrange(len(live)))
        # 2.5 waits for the pool with the interpreter's lock, and another thread for that with the pool's: it hangs now and then, without a trace too.
        if seeded.random() < 0.01 and not torch_npu.__version__.startswith("2.5."):
            torch.npu.empty_cache()
        if len(live) > 30:
            del live[:10]


threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stats = torch.npu.memory_stats(0)
print("peaks", stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"], flush=True)

"""late.py SEED [BUSY]: keeps tensors, waits for a tracer, keeps and drops others. With BUSY a thread allocates at full speed meanwhile, up
to the first mark behind.
"""
import random
import sys
import threading

import mindspore as ms
import numpy as np
from mindspore import mint

import truth

ms.set_device("Ascend", 1)
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.runtime.set_memory(max_size="1GB")
rng = random.Random(int(sys.argv[1]))
kept = []


def work(rng, kept, count):
    """Some results are kept, some that were are dropped."""
    for _ in range(count):
        rows = ms.Tensor(np.ones((rng.randrange(1, 300), rng.randrange(1, 300)), np.float32))
        total = rows + rows
        product = mint.matmul(total, mint.transpose(total, 0, 1))
        if rng.random() < 0.4:
            kept.append(rng.choice([total, product]))
        if kept and rng.random() < 0.2:
            kept.pop(rng.randrange(len(kept)))


stop = threading.Event()
own = []


def run():
    while not stop.is_set():
        work(rng, own, 5)


work(rng, kept, 60)
busy = threading.Thread(target=run)
if sys.argv[2:]:
    busy.start()
else:
    ms.runtime.synchronize()
truth.wait_for_tracer()
if sys.argv[2:]:
    stop.set()
    busy.join()
truth.mark("attached")
work(rng, kept, 20)
truth.mark("worked")
kept.clear()
own.clear()
truth.mark("cleared")
ms.runtime.empty_cache()
truth.mark("emptied")

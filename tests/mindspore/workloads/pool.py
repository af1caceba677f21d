"""pool.py SEED: operators in PyNative mode on random tensors, some of which are kept; a request that no pool could meet; threads."""
import random
import sys
import threading

import mindspore as ms
import numpy as np
from mindspore import mint

import truth

ms.set_device("Ascend", 0)
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.runtime.set_memory(max_size="1GB")
rng = random.Random(int(sys.argv[1]))


def tensor(rows, columns):
    return ms.Tensor(np.ones((rows, columns), np.float32))


def work(rng, kept, count):
    """Some tensors are kept, some that were are given back."""
    for _ in range(count):
        first = tensor(rng.randrange(1, 300), rng.randrange(1, 300))
        total = first + first
        product = mint.matmul(total, mint.transpose(total, 0, 1))
        if rng.random() < 0.4:
            kept.append(rng.choice([first, total, product]))
        if kept and rng.random() < 0.2:
            kept.pop(rng.randrange(len(kept)))


kept = []
tensor(1, 1) + 1
truth.mark("start")
work(rng, kept, 40)
truth.mark("worked")
try:
    huge = mint.zeros((1 << 20, 1 << 10))
    ms.runtime.synchronize()
    raise SystemExit("4 GiB were found in a pool of 1 GiB")
except RuntimeError as error:
    print("refused:", str(error).splitlines()[0])
huge = None
try:
    ms.runtime.synchronize()
except RuntimeError:
    # The operator that would have filled it, where the request itself has failed at once.
    pass
truth.mark("refused")
kept.clear()
truth.mark("cleared")
ms.runtime.empty_cache()
truth.mark("emptied")
lists = [[], []]
threads = [threading.Thread(target=work, args=(random.Random(number), of, 20)) for number, of in enumerate(lists)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
truth.mark("end")

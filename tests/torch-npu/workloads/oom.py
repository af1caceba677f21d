"""The device's memory runs out, the program catches that and goes on; three times, and three times a retry helps.

Before torch_npu 2.9 the error has no class of its own.

usage: oom.py
"""
import truth
import torch

MIB = 1 << 20
truth.start()


def block(size):
    return torch.empty(size, dtype=torch.uint8, device="npu")


for turn in range(3):
    live = []
    try:
        while True:
            live.append(block((70 + turn) * MIB))
    except RuntimeError:
        truth.mark(f"turn {turn}: out of memory")
    assert live, "not one block"
    kept = block(3 * MIB)
    # All is cached, in pieces too small for this one: the allocator gives them back and tries again.
    del live
    truth.mark(f"turn {turn}: freed")
    large = block(1000 * MIB)
    truth.mark(f"turn {turn}: helped by a retry")
    # More than the device has, whatever is given back.
    try:
        block(5000 * MIB)
        raise SystemExit("there is no such device")
    except RuntimeError:
        truth.mark(f"turn {turn}: too large")
    del large, kept
    torch.npu.empty_cache()
    truth.mark(f"turn {turn}: emptied")

truth.finish()

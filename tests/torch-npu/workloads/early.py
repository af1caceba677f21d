"""A request that the cache has to make room for, on a device of 8 GiB: `throw_on_npumalloc_oom` rejects it, and half of the device is too little for
the last one. Prints the peaks that torch_npu has of its pool, allocated and reserved bytes.

usage: early.py
"""
import torch
import torch_npu  # noqa: F401

MIB = 1 << 20


def tensor(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="npu")


torch.npu.set_device(0)
first = tensor(600)
one, other = tensor(1400), tensor(1000)
del one, other
for size in (1800, 2600):
    block = tensor(size)
    del block
held = tensor(1000)
try:
    block = tensor(3500)
except RuntimeError as error:
    print("rejected" if "preemptively" in str(error) else "failed")
print("peaks", torch.npu.max_memory_allocated(), torch.npu.max_memory_reserved())

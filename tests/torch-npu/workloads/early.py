"""A request that the cache has to make room for, on a device of 8 GiB: `throw_on_npumalloc_oom` rejects it, and half of the device is too little for
the last one. ACL has the device before torch_npu, which asks for its size at once where a fraction is set. Prints the peaks that torch_npu has of its
pool, allocated and reserved bytes.

usage: early.py [SETTINGS]
"""
import ctypes
import sys

import torch
import torch_npu  # noqa: F401

MIB = 1 << 20


def tensor(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="npu")


assert ctypes.CDLL("libascendcl.so").aclrtSetDevice(0) == 0
torch.npu.set_device(0)
for settings in sys.argv[1:]:
    torch.npu.memory._set_allocator_settings(settings)
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

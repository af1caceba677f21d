"""Epochs with tensors of other sizes, each behind a mark `epoch`; with `empty` the cache is emptied there. Prints the peaks that torch_npu has of its
pool: allocated and reserved bytes.

usage: empties.py keep|empty
"""
import ctypes
import sys

import torch

mstx = ctypes.CDLL("libms_tools_ext.so")
mstx.mstxMarkA.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
torch.npu.set_device(0)
held = torch.empty(3 << 20, dtype=torch.uint8, device="npu")
for epoch in range(6):
    mstx.mstxMarkA(b"epoch", None)
    if sys.argv[1] == "empty":
        torch.npu.empty_cache()
    tensors = [torch.empty((21 + 9 * epoch) << 20, dtype=torch.uint8, device="npu") for _ in range(2)]
    del tensors
torch.npu.synchronize()
print("peaks", torch.npu.max_memory_allocated(), torch.npu.max_memory_reserved())

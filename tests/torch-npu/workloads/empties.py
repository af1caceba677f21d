"""Epochs with tensors of other sizes, each behind a mark `epoch`; with `empty` the cache is emptied there, with
`accelerator` by PyTorch's own function, which is for torch_npu from 2.13 on. Prints the peaks that torch_npu has of its
pool: allocated and reserved bytes.

With `pieces` there is one tensor in the middle of free memory, so that the pool can give nothing back where segments are as they were made; of
segments that can grow it can.

usage: empties.py keep|empty|accelerator [pieces]
"""
import ctypes
import sys

import torch

mstx = ctypes.CDLL("libms_tools_ext.so")
mstx.mstxMarkA.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
torch.npu.set_device(0)


def tensor(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="npu")


def begin():
    mstx.mstxMarkA(b"epoch", None)
    has_own = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    if sys.argv[1] == "accelerator" and has_own:
        torch.accelerator.empty_cache()
    elif sys.argv[1] != "keep":
        torch.npu.empty_cache()


if sys.argv[2:] == ["pieces"]:
    first, last = tensor(200), tensor(24)
    del first
    held = tensor(12)
    begin()
    large = tensor(240)
    del large
else:
    held = tensor(3)
    for epoch in range(6):
        begin()
        tensors = [tensor(21 + 9 * epoch) for _ in range(2)]
        del tensors
torch.npu.synchronize()
print("peaks", torch.npu.max_memory_allocated(), torch.npu.max_memory_reserved())

"""Requests beyond the program's memory fraction: the pool refuses them without a call of the driver. Prints each, in bytes.

usage: limited.py
"""
import torch
import torch_npu  # noqa: F401

MIB = 1 << 20


def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="npu")


def attempt(size):
    try:
        tensor(size)
    except RuntimeError:
        print("refused", size)


torch.npu.set_device(0)
free, total = torch.npu.mem_get_info()
torch.npu.set_per_process_memory_fraction(1024 * MIB / total)
held = [tensor(300 * MIB), tensor(0)]
torch.npu.mem_get_info()
for size in (200 * MIB, 800 * MIB, 600 * MIB, 0, 900 * MIB):
    attempt(size)
    torch.npu.mem_get_info()
del held
attempt(900 * MIB)
attempt(2000 * MIB)

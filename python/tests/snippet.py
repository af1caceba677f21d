"""Runs a snippet (`snippets/*.py`) as it is written, among what it takes for granted: `train`, torch, a dump.

Usage: snippet.py NAME. With the simulated driver at hand, `train` allocates and frees a block of 4096 bytes, and tensors are blocks of 400
bytes. Where torch_npu is installed, it is the real one that is used.
"""
import ctypes
import os
import sys
import types

DUMP = """\
ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)
1,MSTX,Mark,step start,1000,7,8,0,N/A,,,
2,MALLOC,HAL,N/A,1100,7,8,0,0x1000,"{allocation_id:1,addr:0x1000,size:2097152,owner:CANN@APP}",,
3,MSTX,Mark,step start,1200,7,8,0,N/A,,,
4,MSTX,Mark,step start,1300,7,8,0,N/A,,,
"""
# Module APP, device memory of device 0.
FLAG = ctypes.c_ulonglong(33 << 56 | 1 << 10)


def driver():
    try:
        return ctypes.CDLL("libascend_hal.so")
    except OSError:
        return None


HAL = driver()


def alloc(size):
    if HAL is None:
        return 4096
    pointer = ctypes.c_void_p()
    assert HAL.halMemAlloc(ctypes.byref(pointer), ctypes.c_ulonglong(size), FLAG) == 0
    return pointer.value


def free(address):
    if HAL is not None:
        assert HAL.halMemFree(ctypes.c_void_p(address)) == 0


def train():
    free(alloc(4096))
    return "trained"


class Tensor:
    """As much of one as is asked for; of the class that `watch` wants."""

    __module__ = "torch"
    nbytes = 400

    def __init__(self):
        self._address = alloc(self.nbytes)

    def to(self, _device):
        return self

    def data_ptr(self):
        return self._address


def made_up_torch():
    torch = types.ModuleType("torch")
    torch.npu = types.SimpleNamespace(
        current_device=lambda: 0, mem_get_info=lambda device: (600, 900), memory_reserved=lambda device: 400,
        max_memory_reserved=lambda device: 500, memory_allocated=lambda device: 300, max_memory_allocated=lambda device: 350)
    torch.randn = lambda *_shape: Tensor()
    return {"torch": torch, "torch_npu": types.ModuleType("torch_npu")}


def main(name):
    try:
        import torch_npu
        torch_npu.npu.set_device(0)
    except ImportError:
        sys.modules.update(made_up_torch())
    with open("memscope_dump.csv", "w") as file:
        file.write(DUMP)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "snippets", name + ".py")
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), {"__name__": "__main__", "train": train})


main(sys.argv[1])

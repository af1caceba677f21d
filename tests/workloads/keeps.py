"""Trains by marked steps, and keeps a loss of each in a list, which Python frees at its end. The weights are never freed.

Usage: keeps.py STEPS WEIGHTS
"""
import ctypes
import sys

HAL = ctypes.CDLL("libascend_hal.so")
MSTX = ctypes.CDLL("libms_tools_ext.so")
MSTX.mstxRangeStartA.restype = ctypes.c_uint64
# Module APP, device memory of device 0.
FLAG = ctypes.c_ulonglong(33 << 56 | 1 << 10)


def alloc(size):
    pointer = ctypes.c_void_p()
    assert HAL.halMemAlloc(ctypes.byref(pointer), ctypes.c_ulonglong(size), FLAG) == 0
    return pointer


class Tensor:
    def __init__(self, size):
        self.pointer = alloc(size)

    def __del__(self, free=HAL.halMemFree):
        free(self.pointer)


assert ctypes.CDLL("libascendcl.so").aclrtSetDevice(0) == 0
for _ in range(int(sys.argv[2])):
    alloc(8192)
losses = []
for _ in range(int(sys.argv[1])):
    step = MSTX.mstxRangeStartA(b"step start", None)
    temporary = Tensor(16384)
    losses.append(Tensor(4096))
    del temporary
    MSTX.mstxRangeEnd(ctypes.c_uint64(step))

"""A server that keeps blocks: allocates one for each request, keeps it in a way that its first argument names, and frees a second one.

Usage: holds.py list|local|fails SECONDS

Prints `ready` before the first request, and `failed` when the device is full (`fails`: it waits then, with what it has kept).
"""
import ctypes
import sys
import time

HAL = ctypes.CDLL("libascend_hal.so")
# Module APP, device memory of device 0.
FLAG = ctypes.c_ulonglong(33 << 56 | 1 << 10)
SIZE = 1 << 20


class Engine:
    def __init__(self):
        self._cache = {"history": []}


def alloc():
    pointer = ctypes.c_void_p()
    if HAL.halMemAlloc(ctypes.byref(pointer), ctypes.c_ulonglong(SIZE), FLAG) != 0:
        raise MemoryError
    return pointer


def handle():
    kept = alloc()
    HAL.halMemFree(alloc())
    return kept


def keep(block):
    engine._cache["history"].append(block)


def serve(until):
    while time.monotonic() < until:
        keep(handle())
        time.sleep(0.05)


def serve_locally(until):
    batch = {"requests": []}
    while time.monotonic() < until:
        batch["requests"].append(handle())
        time.sleep(0.05)


def fill(until):
    try:
        while True:
            keep(alloc())
    except MemoryError:
        print("failed", flush=True)
    time.sleep(max(0, until - time.monotonic()))


assert ctypes.CDLL("libascendcl.so").aclrtSetDevice(0) == 0
engine = Engine()
mode, seconds = sys.argv[1], float(sys.argv[2])
print("ready", flush=True)
{"list": serve, "local": serve_locally, "fails": fill}[mode](time.monotonic() + seconds)

"""What scripts do that a daemon has traced, around calls of the simulated driver with sizes of their own.

Usage: daemon.py SCENARIO [KEY=VALUE...]: settings of config(). Files beside the current folder's `go` let it go on.
"""
import ctypes
import os
import subprocess
import sys
import time

import msmemscope

HAL = ctypes.CDLL("libascend_hal.so")
# Module APP, device memory of device 0.
FLAG = ctypes.c_ulonglong(33 << 56 | 1 << 10)


def alloc(size):
    pointer = ctypes.c_void_p()
    assert HAL.halMemAlloc(ctypes.byref(pointer), ctypes.c_ulonglong(size), FLAG) == 0
    return pointer


def free(pointer):
    assert HAL.halMemFree(pointer) == 0


def wait():
    """Says so, and waits for the file `go`."""
    print(f"ready {os.getpid()}", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.005)


def window():
    free(alloc(1000))
    msmemscope.start()
    free(alloc(2000))
    msmemscope.step()
    msmemscope.stop()
    free(alloc(3000))


def older():
    """A block that lives when collection begins."""
    block = alloc(1000)
    msmemscope.start()
    free(block)
    msmemscope.stop()


def labelled():
    """Labels before the tracer is there."""
    from msmemscope import describe

    describe.describe_label("early", describe.PROCESS)
    with describe.describer(owner="range"):
        msmemscope.start()
        free(alloc(2000))
    free(alloc(3000))
    msmemscope.stop()


def waits():
    msmemscope.start()
    free(alloc(2000))
    wait()
    free(alloc(4000))
    msmemscope.stop()


def twice():
    """Asks again when the first tracer is gone."""
    waits()
    msmemscope.start()
    free(alloc(5000))
    msmemscope.stop()


def forks():
    """The child has the tracer of its parent, and asks for no other."""
    msmemscope.start()
    free(alloc(2000))
    child = os.fork()
    if child == 0:
        msmemscope.start()
        free(alloc(6000))
        msmemscope.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    msmemscope.stop()


def runs():
    """Starts another program."""
    msmemscope.start()
    free(alloc(2000))
    with open("command") as file:
        assert subprocess.call(file.read(), shell=True) == 0
    msmemscope.stop()


if len(sys.argv) > 2:
    msmemscope.config(**dict(setting.split("=", 1) for setting in sys.argv[2:]))
globals()[sys.argv[1]]()
print("end", flush=True)

"""A process with much host memory: GIB of it are pages that were only read, which take no memory of the machine. A dict holds a made-up device block, and another one
is held by an object that was made behind that memory.

usage: large.py GIB
"""
import ctypes
import mmap
import sys
import time

PAGE = 4096
cache = {"before": [ctypes.c_void_p(0x12C100000000)]}
# `MAP_NORESERVE` has a name since CPython 3.13, and the same number on x86-64 and aarch64.
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
memory = [mmap.mmap(-1, 1 << 30, flags=flags) for _ in range(int(sys.argv[1]))]
for part in memory:
    assert not any(part[::PAGE])
cache["behind"] = [[at] for at in range(100000)]
cache["behind"][77777].append(ctypes.c_void_p(0x12C100400000))
print("ready", flush=True)
time.sleep(600)

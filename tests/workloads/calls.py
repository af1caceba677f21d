"""Makes the calls of `calls.c` from below N Python frames.

Usage: calls.py LIBCALLS KIND CALLS BLOCKS FRAMES
"""
import ctypes
import sys

library, kind, calls, blocks, frames = sys.argv[1:]
run = ctypes.CDLL(library).calls_run
run.argtypes = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64


def innermost():
    run(kind.encode(), int(calls), int(blocks))


# As in most programs, each frame runs code of its own, and a few share a file. The module's frame and the innermost are two.
names = {"inner0": innermost}
count = int(frames) - 2
for number in range(count):
    source = f"def inner{number + 1}():\n    inner{number}()\n"
    exec(compile(source, f"module_{number // 3}.py", "exec"), names)
names[f"inner{count}"]()

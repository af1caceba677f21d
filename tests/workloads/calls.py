"""Makes the calls of `calls.c` from below so many Python frames.

Usage: calls.py LIBCALLS KIND CALLS BLOCKS FRAMES
"""
import ctypes
import sys

library, kind, calls, blocks, frames = sys.argv[1:]
run = ctypes.CDLL(library).calls_run
run.argtypes = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64


def at(frames_left):
    if frames_left > 0:
        at(frames_left - 1)
    else:
        run(kind.encode(), int(calls), int(blocks))


# The module's frame and the one that calls are two.
at(int(frames) - 2)

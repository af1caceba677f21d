"""Makes the calls of `calls.c` from below N Python frames.

Usage: calls.py LIBCALLS KIND CALLS BLOCKS FRAMES [--hold], which waits as that of `calls.c` does.
"""
import ctypes
import os
import signal
import sys

library, kind, calls, blocks, frames, *hold = sys.argv[1:]
run = ctypes.CDLL(library).calls_run
run.argtypes = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64
SIGNALS = {signal.SIGUSR1, signal.SIGTERM}
if hold:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def innermost():
    run(kind.encode(), int(calls), int(blocks))


# As in most programs, each frame runs code of its own, and a few share a file. The module's frame and the innermost are two.
names = {"inner0": innermost}
count = int(frames) - 2
for number in range(count):
    source = f"def inner{number + 1}():\n    inner{number}()\n"
    exec(compile(source, f"module_{number // 3}.py", "exec"), names)
if hold:
    print("ready", os.getpid(), flush=True)
    signal.sigwait(SIGNALS)
names[f"inner{count}"]()
if hold:
    sys.stdout.flush()
    signal.sigwait(SIGNALS)

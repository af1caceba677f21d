"""A process with host memory of one kind: `numbers` (arrays without pointers), `objects` (dicts and lists). Says that it is ready."""
import array
import ctypes
import sys
import time

kind, gib = sys.argv[1], float(sys.argv[2])
held = [ctypes.c_void_p(0x12C100000000)]
if kind == "numbers":
    chunk = 64 << 20
    kept = [array.array("d", bytes(range(256))) * (chunk // 256) for _ in range(int(gib * (1 << 30)) // chunk)]
else:
    # About 9.6 KiB each: a dict of fifty lists of two.
    kept = [{"k%d" % key: [key, str(key)] for key in range(50)} for _ in range(int(gib * 110000))]
print("ready", flush=True)
time.sleep(600)

"""A process with host memory of one kind: `numbers` (arrays without pointers), `objects` (dicts and lists), `both` (half of each). Says that it is ready. With a
third argument it works: it counts rounds, and keeps the number in that file.
"""
import array
import ctypes
import os
import sys
import time

kind, gib, counted = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
held = [ctypes.c_void_p(0x12C100000000)]
numbers_gib = {"numbers": gib, "both": gib / 2, "objects": 0.0}[kind]
chunk = 64 << 20
numbers = [array.array("d", bytes(range(256))) * (chunk // 256) for _ in range(int(numbers_gib * (1 << 30)) // chunk)]
# About 9.6 KiB each: a dict of fifty lists of two.
kept = [{"k%d" % key: [key, str(key)] for key in range(50)} for _ in range(int((gib - numbers_gib) * 110000))]
print("ready", flush=True)
if not counted:
    time.sleep(600)
    sys.exit()
file = os.open(counted[0], os.O_WRONLY | os.O_CREAT)
rounds, end = 0, time.monotonic() + 600
while time.monotonic() < end:
    for _ in range(100):
        cache = {"k%d" % key: [key, str(key)] for key in range(50)}
    rounds += 100
    os.pwrite(file, rounds.to_bytes(8, "little"), 0)

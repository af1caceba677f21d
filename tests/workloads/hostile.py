"""Texts that mean harm, by the markers themselves: nothing of the package has looked at them.

Usage: hostile.py. For text N of TEXTS there is a block of 1000 + N bytes with the label, a snapshot of that name, and a range.
"""
import ctypes
import time

import msmemscope
from memscope_bpf._native import native

MARKERS = ctypes.CDLL(native.__file__)
HAL = ctypes.CDLL("libascend_hal.so")
FLAG = ctypes.c_ulonglong(33 << 56 | 1 << 10)
TEXTS = [
    b"line\nbreak\r\tend", b'"quoted", comma', b"\x1b[2J\x1b]0;title\x07\x7f", b"=1+1", b"bad \xff\xfe \xc3", "\u202e \u2028 \x9b".encode(),
    b"before\0behind", b"N/A", b"{a:1,b:2}", "\u4e2d\u6587".encode(), b"back\\slash", b"x" * 2000,
]


class Snapshot(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("device", "reserved", "max_reserved", "allocated", "max_allocated", "total", "free")]


def alloc(size):
    pointer = ctypes.c_void_p()
    assert HAL.halMemAlloc(ctypes.byref(pointer), ctypes.c_ulonglong(size), FLAG) == 0


msmemscope.config(events="alloc,free,traceback")
msmemscope.start()
for number, text in enumerate(TEXTS):
    # Numbers that the package does not give.
    label = ctypes.c_uint64(1000 + number)
    MARKERS.memscope_mark_label_text(label, ctypes.c_char_p(text))
    MARKERS.memscope_mark_labels(ctypes.c_uint64(0), ctypes.c_uint64(label.value << 16))
    alloc(1000 + number)
    MARKERS.memscope_mark_labels(ctypes.c_uint64(0), ctypes.c_uint64(0))
    record = Snapshot(0, 400, 500, 300, 350, 900, 600)
    MARKERS.memscope_mark_snapshot(ctypes.c_char_p(text), ctypes.byref(record))
    MARKERS.memscope_mark_range(ctypes.c_char_p(text), ctypes.c_uint64(time.monotonic_ns()))
names = {}
exec(compile("def called(): pass", 'file\x1b[2J\n",.py', "exec"), names)
names["called"]()
msmemscope.stop()

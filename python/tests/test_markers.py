"""The module's file: what a tracer and other tools rely on."""
import ctypes
import platform
import struct
import unittest

from memscope_bpf import _native

FILE = _native.native.__file__
# Name of the note, and where its arguments are: how many there are.
MARKERS = {
    "memscope_marks_1": ("presence", 0), "memscope_mark_config": ("config", 3), "memscope_mark_start": ("start", 0),
    "memscope_mark_stop": ("stop", 0), "memscope_mark_step": ("step", 0), "memscope_mark_labels": ("labels", 2),
    "memscope_mark_label_text": ("label_text", 2), "memscope_mark_label_addr": ("label_addr", 3),
    "memscope_mark_snapshot": ("snapshot", 2), "memscope_mark_range": ("range", 2),
    "memscope_mark_trace_text": ("trace_text", 2), "memscope_mark_trace": ("trace", 1),
    "memscope_mark_watch": ("watch", 4), "memscope_mark_unwatch": ("unwatch", 1),
}
MACHINES = {
    "x86_64": (bytes.fromhex("900f1f440000c3"), ["8@%rdi", "8@%rsi", "8@%rdx", "8@%rcx"]),
    "aarch64": (bytes.fromhex("1f2003d5c0035fd6"), ["8@x0", "8@x1", "8@x2", "8@x3"]),
}
# Type and owner of a note, as they follow its sizes.
OWNER = struct.pack("<I", 3) + b"stapsdt\0"
CODE, PLACES = MACHINES[platform.machine()]


def notes():
    """Provider, name, arguments and semaphore of every note, by its place in the file's own addresses."""
    with open(FILE, "rb") as file:
        data = file.read()
    found, at = {}, data.find(OWNER)
    while at >= 0:
        size = struct.unpack_from("<I", data, at - 4)[0]
        body = data[at + len(OWNER):at + len(OWNER) + size]
        at = data.find(OWNER, at + len(OWNER))
        location, _base, semaphore = struct.unpack_from("<QQQ", body)
        provider, name, arguments = body[24:].split(b"\0")[:3]
        found[location] = (provider.decode(), name.decode(), arguments.decode(), semaphore != 0)
    return found


class Markers(unittest.TestCase):
    maxDiff = None

    def test_functions_and_notes(self):
        library, told = ctypes.CDLL(FILE), notes()
        address = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in MARKERS}
        for name, at in address.items():
            self.assertEqual((ctypes.string_at(at, len(CODE)), at % 16), (CODE, 0), name)
        # The lowest place is that of the lowest function.
        base = min(address.values()) - min(told)
        expected = {at - base: ("msmemscope", MARKERS[name][0], " ".join(PLACES[:MARKERS[name][1]]), name == "memscope_marks_1")
                    for name, at in address.items()}
        self.assertEqual(told, expected)
        self.assertEqual(ctypes.c_uint16.in_dll(library, "memscope_semaphore").value, 0)


if __name__ == "__main__":
    unittest.main()

"""The module's file: what a tracer and other tools rely on."""
import ctypes
import unittest

import marker_file
from memscope_bpf import _native

FILE = _native.native.__file__


class Markers(unittest.TestCase):
    maxDiff = None

    def test_file(self):
        self.assertEqual(marker_file.problems(FILE), [])

    def test_memory(self):
        """What the loader has made of it is what the file has."""
        library, file = ctypes.CDLL(FILE), marker_file.File(FILE)
        code, _ = marker_file.MACHINES[file.machine]
        address = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in marker_file.MARKERS}
        self.assertEqual({name: ctypes.string_at(at, len(code)) for name, at in address.items()}, dict.fromkeys(address, code))
        self.assertEqual(len({at - file.symbols[name] for name, at in address.items()}), 1)
        self.assertEqual(ctypes.c_uint16.in_dll(library, marker_file.SEMAPHORE).value, 0)


if __name__ == "__main__":
    unittest.main()

"""A stand-in for the Python package of CANN: the calls that servers make, on the library of the same functions."""
import ctypes

library = ctypes.CDLL("libascendcl.so")

from . import rt  # noqa: E402


def init(config=None):
    return library.aclInit(None)


def finalize():
    return 0

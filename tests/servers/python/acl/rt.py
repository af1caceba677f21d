"""Devices and their memory."""
import ctypes

from . import library

library.aclrtMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def memcpy(to, room, of, size, kind):
    return library.aclrtMemcpy(to, room, of, size, kind)


def set_device(device):
    return library.aclrtSetDevice(device)


def get_device_count():
    count = ctypes.c_uint32()
    result = library.aclrtGetDeviceCount(ctypes.byref(count))
    return count.value, result


def get_mem_info(attribute):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    result = library.aclrtGetMemInfo(attribute, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value, result

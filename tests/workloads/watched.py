"""A script that names a block of device memory; kernels fill others, and once that one.

Usage: watched.py
"""
import ctypes

import msmemscope

ACL = ctypes.CDLL("libascendcl.so")
RUNTIME = ctypes.CDLL("libruntime.so")
FILL = 0x6C6C69665F6D6973
BYTES = 4096


class Fill(ctypes.Structure):
    _fields_ = [("magic", ctypes.c_uint64), ("to", ctypes.c_void_p), ("len", ctypes.c_uint64), ("value", ctypes.c_uint64)]


class Binary(ctypes.Structure):
    _fields_ = [("magic", ctypes.c_uint32), ("version", ctypes.c_uint32), ("data", ctypes.c_char_p), ("length", ctypes.c_uint64)]


def alloc():
    pointer = ctypes.c_void_p()
    assert ACL.aclrtMalloc(ctypes.byref(pointer), ctypes.c_size_t(BYTES), 0) == 0
    return pointer.value


assert ACL.aclInit(None) == 0 and ACL.aclrtSetDevice(0) == 0
handle = ctypes.c_void_p()
binary = Binary(0x43554245, 0, b"\x7fELF", 4)
assert RUNTIME.rtDevBinaryRegister(ctypes.byref(binary), ctypes.byref(handle)) == 0
stubs = {}


def launch(name, to):
    if name not in stubs:
        stubs[name] = ctypes.create_string_buffer(1)
        text = name.encode()
        assert RUNTIME.rtFunctionRegister(handle, stubs[name], text, text, 0) == 0
    fill = Fill(FILL, to, 64, 7)
    assert RUNTIME.rtKernelLaunch(stubs[name], 1, ctypes.byref(fill), ctypes.sizeof(fill), None, None) == 0


other, watched, second = alloc(), alloc(), alloc()
launch("before", other)
msmemscope.watcher.watch(watched, length=BYTES, name="weights")
msmemscope.watcher.watch(second, length=BYTES, name="twice", dump_nums=2)
for name in ("first", "second"):
    launch(name, other)
launch("culprit", watched)
launch("last", other)
msmemscope.watcher.remove(watched, length=BYTES)
launch("after", watched)
assert ACL.aclrtSynchronizeDevice() == 0
print("done")

"""Calls the simulated driver from every kind of Python code, and prints its own stack at each call.

Each line `TRUTH {json}`: process, thread, frames from the innermost on as (file, line, name), as `sys._getframe` has them.
Usage: stacks.py SCENARIO...; `wait` waits for a file `go` in the working directory.
"""
import asyncio
import ctypes
import functools
import json
import os
import sys
import threading
import time

GIL_RELEASED = ctypes.CDLL("libascend_hal.so")
GIL_HELD = ctypes.PyDLL("libascend_hal.so")


def truth(end="root", count=None):
    frames = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        frames.append((code.co_filename, frame.f_lineno, getattr(code, "co_qualname", code.co_name)))
        frame = frame.f_back
    frames = frames[:count]
    truth = {"pid": os.getpid(), "tid": threading.get_native_id(), "end": end, "frames": frames}
    os.write(1, ("TRUTH " + json.dumps(truth) + "\n").encode())


class Damage:
    """Eight bytes of the interpreter that have another value during the call."""

    def __init__(self, address, value):
        self.word = ctypes.c_uint64.from_address(address)
        self.value = value

    def swap(self):
        self.word.value, self.value = self.value, self.word.value


class NoDamage:
    def swap(self):
        pass


def allocate(library=GIL_RELEASED, end="root", count=None, damage=NoDamage()):
    pointer = ctypes.c_void_p()
    size, flag = ctypes.c_ulonglong(4096), ctypes.c_ulonglong(0)
    truth(end, count); damage.swap(); library.halMemAlloc(ctypes.byref(pointer), size, flag); damage.swap()
    return pointer


def wait():
    print("ready", os.getpid(), flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    # It may be waited for once more.
    os.remove("go")


def kept_twice():
    """This thread's state is kept with another key of threads, too, as pybind11 does it."""
    libc, key, state = ctypes.CDLL(None), ctypes.c_uint(), ctypes.pythonapi.PyThreadState_Get
    state.restype = ctypes.c_void_p
    assert libc.pthread_key_create(ctypes.byref(key), None) == 0
    assert libc.pthread_setspecific(key, ctypes.c_void_p(state())) == 0


class Net:
    def forward(self, depth, library):
        if depth > 0:
            return self.forward(depth - 1, library)
        return allocate(library)

    call = lambda self, depth, library: self.forward(depth, library)

    @staticmethod
    def still(library):
        return allocate(library)

    @classmethod
    def of_class(cls, library):
        return cls.still(
            library
        )


def plain():
    for library in (GIL_RELEASED, GIL_HELD):
        Net().forward(3, library)
        Net().call(2, library)
        Net.of_class(library)


def generator(depth):
    if depth:
        yield from generator(depth - 1)
    else:
        yield allocate()
        yield allocate(GIL_HELD)


def generators():
    for _ in generator(4):
        pass
    sum(1 for _ in (allocate() for _ in range(2)))
    [allocate() for _ in range(2)]


def callbacks():
    # C calls back into Python: `sorted`, `map`, a C function of ctypes.
    sorted([1, 2], key=lambda _: allocate() and 0)
    list(map(lambda _: allocate(GIL_HELD), [1]))
    functools.partial(functools.reduce, lambda a, b: (allocate(), b)[1])([1, 2])
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda a, b: (allocate(), 0)[1])
    array = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(array, ctypes.c_size_t(2), ctypes.c_size_t(4), compare)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)
    return wrapper


@decorated
@decorated
def behind_decorators():
    allocate()


class Manager:
    def __enter__(self):
        allocate()

    def __exit__(self, *_):
        allocate()

    def __del__(self):
        allocate()

    @property
    def value(self):
        return allocate()


def exceptions():
    behind_decorators()
    try:
        raise ValueError
    except ValueError:
        allocate()
    finally:
        allocate(GIL_HELD)
    manager = Manager()
    with manager:
        manager.value
    del manager
    try:
        with Manager():
            raise KeyError
    except KeyError:
        Net().forward(1, GIL_RELEASED)


async def coroutine(depth):
    if depth:
        await asyncio.sleep(0)
        return await coroutine(depth - 1)
    return allocate()


async def together():
    await asyncio.gather(coroutine(3), coroutine(1))
    async for _ in asynchronous():
        allocate(GIL_HELD)


async def asynchronous():
    yield allocate()


def asynchronously():
    loop = asyncio.new_event_loop()
    loop.run_until_complete(together())
    loop.close()


def names():
    space = {"allocate": allocate}
    for name, file in (("größe", "größe.py"), ("模块", "/tmp/模块.py"), ("ñ", "\U0001f40d.py"), ("x" * 240, "y" * 500)):
        exec(compile(f"def {name}():\n    allocate()\n{name}()", file, "exec"), space)


def long_names():
    # Longer than what the kernel side takes, and a table of more than 4 KiB: the rest is read a moment later, from code
    # that is still there.
    name = "long" * 100
    body = "".join(f"    x = [{i},\n      {i}]\n" for i in range(2000))
    space = {"allocate": allocate}
    kept = []
    for source, file in (
        (f"def {name}():\n    allocate()\n{name}()", "f" * 2000),
        (f"def big():\n{body}    allocate()\nbig()", "big.py"),
    ):
        kept.append(compile(source, file, "exec"))
        exec(kept[-1], space)
    time.sleep(2)


def threads():
    def work(barrier, library):
        barrier.wait()
        for depth in range(20):
            Net().forward(depth, library)
    barrier = threading.Barrier(4)
    some = [threading.Thread(target=work, args=(barrier, library)) for library in (GIL_RELEASED, GIL_HELD) * 2]
    for thread in some:
        thread.start()
    for thread in some:
        thread.join()


def deep():
    sys.setrecursionlimit(5000)
    for depth in (100, 990):
        Net().forward(depth, GIL_RELEASED)


def churn():
    # Code that lives for one call each: addresses, even whole sets of them, are used again.
    space = {"allocate": allocate}
    for turn in range(300):
        blank = "\n" * (turn % 7)
        exec(compile(f"def f{turn}():\n{blank}    allocate()\nf{turn}()", f"<turn {turn}>", "exec"), space)
        del space[f"f{turn}"]
    for turn in range(300):
        # The same name and file, other lines.
        blank = "\n" * (turn % 7)
        exec(compile(f"def same():\n{blank}    allocate()\nsame()", "<same>", "exec"), space)
        del space["same"]
    for turn in range(300):
        # The same name and line, another file.
        exec(compile("def same():\n    allocate()\nsame()", f"<file {turn % 5}>", "exec"), space)
        del space["same"]


def forks():
    for _ in range(3):
        child = os.fork()
        if child == 0:
            Net().forward(2, GIL_RELEASED)
            # Both make other code at what may be the same address.
            space = {"allocate": allocate}
            exec(compile("def child():\n    allocate()\nchild()", "<child>", "exec"), space)
            os._exit(0)
        space = {"allocate": allocate}
        exec(compile("def other():\n\n    allocate()\nother()", "<other>", "exec"), space)
        os.waitpid(child, 0)


def executes():
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, __file__, "plain"])
    os.waitpid(child, 0)


def foreign():
    # A thread that has never run Python: its stack is empty, and says why.
    pointer = allocate()
    thread = ctypes.c_ulong()
    start = ctypes.cast(GIL_RELEASED.halMemFree, ctypes.c_void_p)
    libc = ctypes.CDLL("libpthread.so.0")
    assert libc.pthread_create(ctypes.byref(thread), None, start, pointer) == 0
    assert libc.pthread_join(thread, None) == 0


def damaged():
    # What is not the thread's state is not followed, and what cannot be read ends the stack: with what was read.
    minor = sys.version_info[1]
    state = ctypes.pythonapi.PyGILState_GetThisThreadState
    state.restype = ctypes.c_void_p
    thread_id = {8: 176, 9: 176, 10: 176, 11: 152, 12: 136}.get(minor, 152)
    allocate(end="bad", count=0, damage=Damage(state() + thread_id, 0x1000))

    def inner():
        frame = id(sys._getframe(1))
        if minor <= 10:
            back = frame + 24
        else:
            back = ctypes.c_uint64.from_address(frame + 24).value + (48 if minor == 11 else 8)
        allocate(end="fault", count=3, damage=Damage(back, 8))

    def outer():
        inner()

    outer()
    allocate()


def several():
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    other = interpreters.create()
    allocate(end="several")
    interpreters.destroy(other)
    allocate()


if __name__ == "__main__":
    for scenario in sys.argv[1:]:
        globals()[scenario]()

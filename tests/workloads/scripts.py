"""What scripts do with the Python package, around calls of the simulated driver with sizes of their own.

Usage: scripts.py SCENARIO
"""
import ctypes
import os
import sys
import threading
import time
import types

import msmemscope
from msmemscope import describe

HAL = ctypes.CDLL("libascend_hal.so")
# Module APP, device memory of device 0.
FLAG = ctypes.c_ulonglong(33 << 56 | 1 << 10)


def alloc(size):
    pointer = ctypes.c_void_p()
    assert HAL.halMemAlloc(ctypes.byref(pointer), ctypes.c_ulonglong(size), FLAG) == 0
    return pointer


def free(pointer):
    assert HAL.halMemFree(pointer) == 0


def windows():
    old = alloc(2000)
    free(alloc(1000))
    msmemscope.step()
    msmemscope.start()
    msmemscope.step()
    free(alloc(3000))
    msmemscope.stop()
    free(old)
    free(alloc(4000))
    kept = alloc(5000)
    msmemscope.step()
    msmemscope.start()
    free(kept)
    msmemscope.step()
    alloc(6000)
    msmemscope.stop()
    alloc(7000)


def configured():
    free(alloc(1000))
    msmemscope.config(events="free", level="op,kernel", format="csv", output_path="./output")
    free(alloc(2000))
    msmemscope.start()
    free(alloc(3000))
    msmemscope.config(events="alloc")
    free(alloc(4000))


def wishes():
    wanted = dict(events="alloc,free,access", call_stack="c:10,python:5", analysis="decompose,inefficient")
    msmemscope.config(output_path="./elsewhere", **wanted)
    msmemscope.start()
    with describe.describer(owner="train"):
        free(alloc(1000))
    msmemscope.config(**wanted)


def leaks():
    for size in (10, 20, 30, 40):
        free(alloc(size))
        alloc(1000 + size)
        msmemscope.step()


def labels():
    alloc(1)
    with describe.describer(owner="train"):
        alloc(2)
        with describe.describer(owner="inner"):
            alloc(3)
            run(lambda: alloc(4))

    @describe.describer(owner="decorated")
    def decorated():
        alloc(5)
        raise KeyError

    try:
        decorated()
    except KeyError:
        alloc(6)
    describe.describe_label("optimizer_state", describe.DETAIL_1)
    describe.describe_label("fsdp2", describe.COMPONENT)
    with describe.describer(owner="a b,c"):
        alloc(7)
    describe.undescribe_label("optimizer_state", describe.DETAIL_1)
    alloc(8)
    describe.undescribe_label("fsdp2", describe.COMPONENT)
    alloc(9)
    # The next thread may well have the number of this one, and none of its labels.
    run(lambda: (describe.describe_label("left behind", describe.PROCESS), alloc(10)))
    for _ in range(3):
        run(lambda: alloc(11))
    with describe.describer(owner="parent"):
        child = os.fork()
        if child == 0:
            alloc(12)
            os._exit(0)
    os.waitpid(child, 0)
    alloc(13)


def many():
    msmemscope.start()
    for _ in range(1000):
        msmemscope.step()
    for number in range(500):
        with describe.describer(owner=f"label_{number % 70}"):
            alloc(1 + number)


def records():
    with msmemscope.RecordFunction("before"):
        pass
    msmemscope.start()
    with msmemscope.RecordFunction("outer"):
        alloc(1)
        try:
            with msmemscope.RecordFunction('inner, "quoted"'):
                alloc(2)
                raise KeyError
        except KeyError:
            pass
    msmemscope.RecordFunction("decorated")(alloc)(3)
    msmemscope.stop()


def run(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def snapshots():
    torch = types.ModuleType("torch")
    torch.npu = types.SimpleNamespace(
        current_device=lambda: 0, mem_get_info=lambda device: (600, 900), memory_reserved=lambda device: 400,
        max_memory_reserved=lambda device: 500, memory_allocated=lambda device: 300, max_memory_allocated=lambda device: 350,
    )
    sys.modules.update(torch=torch, torch_npu=types.ModuleType("torch_npu"))
    msmemscope.take_snapshot(0)
    msmemscope.take_snapshot(1, "not this device")
    msmemscope.take_snapshot([1, 2], "nor these")
    msmemscope.take_snapshot((1, 0), "one of these")
    msmemscope.take_snapshot(name="any")
    with msmemscope.TakeSnapshot(0, name="both"):
        pass
    msmemscope.TakeSnapshot(name="decorated")(lambda: None)()
    try:
        with msmemscope.TakeSnapshot(0, "raises"):
            raise KeyError
    except KeyError:
        pass
    msmemscope.take_snapshot("0", "no mask")


def fact(n):
    return 1 if n == 0 else n * fact(n - 1)


def count():
    yield 1
    yield 2


def fails():
    raise KeyError


def catches():
    try:
        fails()
    except KeyError:
        pass


def in_thread():
    fact(0)


HOOKS = types.SimpleNamespace(before=[], after=[])


def called(module):
    """As torch calls its modules."""
    for hook in HOOKS.before:
        hook(module, ())
    abs(-1)
    for hook in HOOKS.after:
        hook(module, (), None)


def make_up_modules():
    """As much of torch as has to do with calls of modules."""
    def register(hooks):
        return lambda hook: hooks.append(hook) or types.SimpleNamespace(remove=lambda: hooks.remove(hook))

    module = types.ModuleType("torch.nn.modules.module")
    module.register_module_forward_pre_hook = register(HOOKS.before)
    module.register_module_forward_hook = register(HOOKS.after)
    sys.modules[module.__name__] = module


def tree():
    fact(2)
    for _ in count():
        pass
    catches()
    abs(-1)
    (1).bit_length()
    names = {}
    exec(compile("def quoted(): pass", 'with, "quotes".py', "exec"), names)
    names["quoted"]()
    with msmemscope.RecordFunction("range"):
        msmemscope.step()
    type("Linear", (), {"__call__": called})()()
    run(in_thread)


def begins():
    msmemscope.start()


def ends():
    msmemscope.stop()


def traced():
    """The interpreter's calls, by the way that is meant for its version."""
    make_up_modules()
    msmemscope.config(events="traceback")
    begins()
    tree()
    ends()
    assert HOOKS == types.SimpleNamespace(before=[], after=[])
    tree()


def traced_by_profiler():
    """The same by the way that older interpreters have, which newer ones have, too."""
    from memscope_bpf import _tracer

    _tracer._MONITORING = False
    traced()


def traced_in_part():
    """By calls of the trace itself; a child's calls are its own. What is open when a process ends has no end."""
    tree()
    msmemscope.tracer.start()
    catches()
    msmemscope.tracer.stop()
    catches()
    # A thread that was joined may be listed for a moment, and fork() would warn of it, by calls that are traced.
    while len(os.listdir("/proc/self/task")) > 1:
        pass
    msmemscope.tracer.start()
    child = os.fork()
    if child == 0:
        fact(0)
        sys.exit(0)
    os.waitpid(child, 0)
    fails_at_exit()


def flood():
    """More rows than there is room for."""
    msmemscope.start()
    msmemscope.tracer.start()
    for _ in range(60000):
        in_flood()
    msmemscope.tracer.stop()
    msmemscope.stop()


def in_flood():
    pass


def fails_at_exit():
    sys.exit(0)


def marks():
    """1000 steps and 500 changes of labels."""
    for _ in range(1000):
        msmemscope.step()
    for number in range(250):
        with describe.describer(owner=f"label {number}"):
            pass


def beside():
    """Says when a listener comes and goes; makes steps when there is a file `steps`, and ends when there is one `end`."""
    import memscope_bpf

    print("ready", os.getpid(), flush=True)
    listening = stepped = False
    while not os.path.exists("end"):
        if memscope_bpf.listening() != listening:
            listening = not listening
            print("listening" if listening else "alone", flush=True)
        if os.path.exists("steps") and not stepped:
            stepped = True
            for _ in range(100):
                msmemscope.step()
            print("stepped", flush=True)
        time.sleep(0.005)


def waits():
    """Labels before the tracer comes; says when that comes and goes."""
    import memscope_bpf

    describe.describe_label("early", describe.PROCESS)
    with describe.describer(owner="older"):
        print("ready", os.getpid(), flush=True)
        until(memscope_bpf.listening)
        alloc(1)
        with describe.describer(owner="newer"):
            alloc(2)
        alloc(3)
        print("listening", flush=True)
        until(lambda: not memscope_bpf.listening())
    print("alone", flush=True)
    msmemscope.start()
    msmemscope.step()
    msmemscope.stop()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)


globals()[sys.argv[1]]()

"""What calls of the Python package cost, and what calls of Python cost while they are traced.

Usage: python_cost.py COUNT ROUNDS [WAY]. Prints a JSON object: nanoseconds of one call of each kind, in each round. WAY is how calls are
reported while they are made: `trace`, which gives them rows in the Python trace; `trace-by-profile`, the same as interpreters before 3.12 do it; for
comparison `callback`, a Python function by sys.setprofile that does nothing, and `text`, one that writes a row of text for each that returns.
"""
import ctypes
import json
import os
import sys
import time

begin = time.perf_counter_ns()
import memscope_bpf  # noqa: E402
from memscope_bpf import RecordFunction, describe, step, tracer  # noqa: E402
import_ns = time.perf_counter_ns() - begin
from memscope_bpf import _native, _tracer  # noqa: E402

count, rounds = int(sys.argv[1]), int(sys.argv[2])
way = sys.argv[3] if len(sys.argv) > 3 else ""


def nothing(a, b):
    pass


def of_python():
    for _ in range(count):
        nothing(1, 2)


def of_c():
    text = "text"
    for _ in range(count):
        text.islower()


def steps():
    for _ in range(count):
        step()


def labels():
    for _ in range(count):
        with describe.describer(owner="label"):
            pass


def kept_label():
    label = describe.describer(owner="label")
    for _ in range(count):
        with label:
            pass


def ranges():
    for _ in range(count):
        with RecordFunction("range"):
            pass


MARKERS = ctypes.PyDLL(_native.native.__file__)
MARKERS.memscope_mark_step.restype, MARKERS.memscope_mark_step.argtypes = None, []


def by_ctypes():
    marker = MARKERS.memscope_mark_step
    for _ in range(count):
        marker()


def callback(_frame, _event, _argument):
    pass


class Text:
    """As a tool would do it that writes its rows in the process."""

    def __init__(self):
        self.file, self.open = open(os.devnull, "w"), []

    def __call__(self, frame, event, argument):
        if event in ("call", "c_call"):
            self.open.append(time.monotonic_ns())
        elif self.open:
            code = frame.f_code
            name = argument.__name__ if event == "c_return" else code.co_name
            self.file.write(f"{code.co_filename}({code.co_firstlineno}): {name},{self.open.pop()},{time.monotonic_ns()},1,1\n")


def one_ns(loop):
    # Of this thread's processor time: what else the machine does is not the call's cost.
    begin = time.thread_time_ns()
    loop()
    return (time.thread_time_ns() - begin) / count


KINDS = {"of Python": of_python, "of C": of_c}
if not way:
    KINDS.update({
        "step()": steps, "with describer(owner=…)": labels, "the same object again": kept_label, "with RecordFunction(…)": ranges,
        "a marker by ctypes": by_ctypes})
memscope_bpf.start()
if way == "trace-by-profile":
    _tracer._MONITORING = False
if way.startswith("trace"):
    tracer.start()
elif way:
    sys.setprofile(callback if way == "callback" else Text())
found = {kind: [one_ns(loop) for _ in range(rounds)] for kind, loop in KINDS.items()}
if way.startswith("trace"):
    tracer.stop()
sys.setprofile(None)
print(json.dumps({"listening": memscope_bpf.listening(), "import": [import_ns], **found}))

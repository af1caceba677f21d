"""What calls of the Python package cost, and what calls of Python cost while they are traced.

Usage: python_cost.py COUNT ROUNDS [trace]. Prints a JSON object: nanoseconds of one call of each kind, in each round. With `trace`
calls have rows in the Python trace.
"""
import json
import sys
import time

begin = time.perf_counter_ns()
import memscope_bpf  # noqa: E402
from memscope_bpf import RecordFunction, describe, step, tracer  # noqa: E402
import_ns = time.perf_counter_ns() - begin

count, rounds = int(sys.argv[1]), int(sys.argv[2])
traced = sys.argv[3:] == ["trace"]


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


def one_ns(loop):
    # Of this thread's processor time: what else the machine does is not the call's cost.
    begin = time.thread_time_ns()
    loop()
    return (time.thread_time_ns() - begin) / count


KINDS = {"of Python": of_python, "of C": of_c}
if not traced:
    KINDS.update({"step()": steps, "with describer(owner=…)": labels, "the same object again": kept_label, "with RecordFunction(…)": ranges})
memscope_bpf.start()
if traced:
    tracer.start()
found = {kind: [one_ns(loop) for _ in range(rounds)] for kind, loop in KINDS.items()}
if traced:
    tracer.stop()
print(json.dumps({"listening": memscope_bpf.listening(), "import": [import_ns], **found}))

"""The Python trace without a tracer: what is put up, and that it is all gone afterwards. Rows are looked at where there is one (live tests)."""
import contextlib
import ctypes
import io
import subprocess
import sys
import threading
import unittest

import memscope_bpf
import msmemscope
from memscope_bpf import _native, _tracer

OLD = sys.version_info < (3, 9)
MONITORING = sys.version_info >= (3, 12)
WARNING = "[msmemscope] Warn: {}.\n"


def said(*calls):
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        for call in calls:
            call()
    return err.getvalue()


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def tools():
    return [sys.monitoring.get_tool(tool) for tool in range(6)] if MONITORING else []


class Case(unittest.TestCase):
    def setUp(self):
        self.addCleanup(said, _tracer.end)
        self.addCleanup(setattr, _tracer.tracer, "_is_active", False)

    def listen(self):
        """As if a tracer were there: the number that it would raise."""
        number = ctypes.c_uint16.in_dll(ctypes.CDLL(_native.native.__file__), "memscope_semaphore")
        number.value = 1
        self.addCleanup(setattr, number, "value", 0)
        self.assertTrue(memscope_bpf.listening())


class Misuse(Case):
    def test_misuse(self):
        """Warnings, and nothing is raised."""
        too_old = WARNING.format("the Python trace needs Python 3.9")
        idle = WARNING.format("the Python trace is not active")
        active = WARNING.format("the Python trace is active already")
        tracer = msmemscope.tracer
        self.assertEqual(said(tracer.stop), idle)
        self.assertEqual(said(tracer.start), too_old if OLD else "")
        self.assertEqual(said(tracer.start), too_old if OLD else active)
        self.assertEqual(said(tracer.stop), idle if OLD else "")
        self.assertEqual(said(tracer.stop), idle)

    def test_nothing_is_put_up_without_a_tracer(self):
        before = tools(), sys.getprofile()
        said(msmemscope.tracer.start, lambda: fibonacci(5))
        self.assertEqual((tools(), sys.getprofile(), _tracer._undo), (*before, None))


if not OLD:
    class Traced(Case):
        def test_all_is_gone_afterwards(self):
            self.listen()
            ways = (True, False) if MONITORING else (False,)
            self.addCleanup(setattr, _tracer, "_MONITORING", _tracer._MONITORING)
            for _tracer._MONITORING in ways:
                with self.subTest(monitoring=_tracer._MONITORING):
                    before = tools(), sys.getprofile(), threading._profile_hook
                    self.assertEqual(said(msmemscope.tracer.start), "")
                    self.assertIsNotNone(_tracer._undo)
                    threads = [threading.Thread(target=fibonacci, args=(12,)) for _ in range(4)]
                    for thread in threads:
                        thread.start()
                    results = fibonacci(15)
                    for thread in threads:
                        thread.join()
                    self.assertEqual(said(msmemscope.tracer.stop), "")
                    self.assertEqual((results, _tracer._undo), (610, None))
                    self.assertEqual((tools(), sys.getprofile(), threading._profile_hook), before)

        def test_windows(self):
            """`traceback` among the events traces each window, until it is configured otherwise."""
            self.listen()
            states = []
            for events in ("alloc,traceback", "alloc", "traceback,none"):
                msmemscope.config(events=events)
                states.append(_tracer._undo is not None)
                for _ in range(2):
                    msmemscope.start()
                    states.append(_tracer._undo is not None)
                    msmemscope.stop()
                    states.append(_tracer._undo is not None)
            self.assertEqual(states, [False, True, False, True, False] + [False] * 10)

        def test_others_were_there_first(self):
            self.listen()
            if MONITORING:
                for tool in (2, 3, 4):
                    sys.monitoring.use_tool_id(tool, "another")
                    self.addCleanup(sys.monitoring.free_tool_id, tool)
                expected = "other tools take all places for monitoring calls; there is no Python trace"
            else:
                self.addCleanup(sys.setprofile, None)
                sys.setprofile(lambda *_: None)
                expected = "another profiler is at work; there is no Python trace"
            text = said(msmemscope.tracer.start)
            sys.setprofile(None)
            self.assertEqual((text, _tracer._undo), (WARNING.format(expected), None))

        def test_ends_of_processes(self):
            """Of a child, and of a process that does not stop by itself; deep recursion and exceptions on the way."""
            script = """
import ctypes, os, sys, threading
import msmemscope
from memscope_bpf import _native
ctypes.c_uint16.in_dll(ctypes.CDLL(_native.native.__file__), "memscope_semaphore").value = 1
msmemscope.tracer.start()
def deep(n): return deep(n + 1)
try: deep(0)
except RecursionError: pass
child = os.fork()
if child == 0:
    threading.Thread(target=len, args=("x",)).start()
    sys.exit(3)
assert os.waitpid(child, 0)[1] == 3 << 8
threading.Thread(target=lambda: threading.Event().wait(0.05)).start()
raise SystemExit(4)
"""
            run = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
            self.assertEqual((run.returncode, run.stderr), (4, ""))


if __name__ == "__main__":
    unittest.main()

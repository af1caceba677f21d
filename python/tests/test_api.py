"""Calls without a tracer: what they check, and that nothing else fails."""
import contextlib
import io
import os
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

import memscope_bpf
import msmemscope
from memscope_bpf import _control, _native, _pure, _settings, _snapshot, describe
from msmemscope import describe as alias


def config(*arguments, **settings):
    """What config() does in a process of its own, as far as this module goes: raised, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            memscope_bpf.config(*arguments, **settings)
            raised = None
        except Exception as error:
            raised = (type(error), str(error))
    return raised, out.getvalue(), err.getvalue()


class Config(unittest.TestCase):
    def setUp(self):
        _control._locked.clear()

    def test_misuse(self):
        failed = "Set msmemscope trace config failed! "
        table = [
            ({}, ValueError, "config() needs at least one setting"),
            ({"events": 3}, TypeError, "config() wants str for events, not int"),
            ({"level": "op", "device": None}, TypeError, "config() wants str for device, not NoneType"),
            ({"steps": "1"}, ValueError, failed + "steps: no such setting"),
            ({"collect_mode": "immediate"}, ValueError, failed + "collect_mode: no such setting"),
            ({"events": "alloc,malloc"}, ValueError,
             failed + "events: `malloc` is not one of alloc, free, launch, access, block_free, traceback, none"),
            ({"level": "ops"}, ValueError, failed + "level: `ops` is not one of op, kernel"),
            ({"device": ""}, ValueError, failed + "device: no device"),
            ({"device": "npu:32"}, ValueError, failed + "device: `32` is not a number from 0 to 31"),
            ({"device": "npu:01"}, ValueError, failed + "device: `01` is not a number from 0 to 31"),
            ({"device": "gpu"}, ValueError, failed + "device: `gpu` is not one of npu, npu:<0..31>, cpu"),
            ({"call_stack": "c:1001"}, ValueError, failed + "call_stack: `1001` is not a number from 0 to 1000"),
            ({"call_stack": "rust"}, ValueError,
             failed + "call_stack: `rust` is not one of c[:depth], python[:depth], mixed[:depth]"),
            ({"analysis": "oom:0"}, ValueError, failed + "analysis: `0` is not a number from 1 to 1000"),
            ({"analysis": "oomfoo"}, ValueError,
             failed + "analysis: `oomfoo` is not one of leaks, decompose, inefficient, oom, peaks, fragmentation, none"),
            ({"analysis": "leaks:3"}, ValueError,
             failed + "analysis: `leaks:3` is not one of leaks, decompose, inefficient, oom, peaks, fragmentation, none"),
            ({"format": "json"}, ValueError, failed + "format: `json` is not one of csv, db"),
            ({"output_path": ""}, ValueError, failed + "output_path: output_path is no path"),
        ]
        table += [({"watch": watch}, ValueError, failed + "watch: watch is [start[:outid]],end[,full-content]")
                  for watch in ("", "end", ",", "start,end,full-contents")]
        table += [({"watch": watch}, ValueError, failed + "watch: watch has no start in front of the number of its output")
                  for watch in (":,end", ":1,end")]
        table += [({"watch": f"start:{bad},end"}, ValueError, f"{failed}watch: `{bad}` is not a number from 0 to 4294967295")
                  for bad in ("", "error", "01", "4294967296", "-1", "+1", " 1")]
        for settings, kind, message in table:
            with self.subTest(settings=settings):
                self.assertEqual(config(**settings), ((kind, message), "", ""))
        self.assertEqual(_control._locked, {})

    def test_positional_argument(self):
        self.assertIs(config("events")[0][0], TypeError)

    def test_good_values(self):
        table = [
            {"events": "alloc,free,launch,access", "level": "kernel,op", "call_stack": "c:10,python", "analysis": "leaks,oom:20"},
            {"events": "traceback,none"}, {"events": ""}, {"level": ""}, {"analysis": "none"}, {"call_stack": ""},
            {"device": "npu:0，npu:31,cpu,"}, {"watch": "start:123,end,full-content"}, {"format": "db"}, {"output_path": "./output"},
        ]
        for settings in table:
            with self.subTest(settings=settings):
                self.assertEqual(config(**settings), (None, "", ""))

    def test_bits(self):
        """As the contract counts them; those of ours come behind."""
        def bits(**settings):
            return _settings.check(settings, lambda *_: self.fail("nothing is deprecated"))
        self.assertEqual(bits(), (7, 1, 1 << 32))
        self.assertEqual(bits(events="alloc,access,block_free", level="kernel", device="npu:0,npu:2"), (25, 2, 5))
        self.assertEqual(bits(events="alloc,none", level="", device="cpu"), (0, 0, 1 << 33))
        self.assertEqual(bits(events="traceback", level="op,kernel", device="npu,npu:1")[:2], (0, 3))

    def test_what_is_named(self):
        """Analyses as bits and the number of blocks, frames of stacks and one more, and a bit for each of the others that is there."""
        def bits(**settings):
            return _settings.named(settings)
        self.assertEqual(bits(), (0, 0, 0))
        self.assertEqual(bits(analysis="leaks,oom:20", call_stack="c:10"), (1 | 8 | 20 << 16, 11, 0))
        self.assertEqual(bits(analysis="oom,none,leaks", call_stack="python,c:0"), (0, 1 | 51 << 16, 0))
        self.assertEqual(bits(analysis="decompose,inefficient,oom,peaks,fragmentation")[0], 2 | 4 | 8 | 16 | 32 | 10 << 16)
        self.assertEqual(bits(call_stack="mixed:7")[1], 8 | 8 << 16 | 1 << 32)
        self.assertEqual(bits(events="alloc", level="op", device="npu", watch="a,b", format="csv", output_path="x")[2], 95)
        self.assertEqual(bits(format="db", level="op")[2], 34)

    def test_what_can_be_set_once(self):
        for key, first, second in [("watch", "a,b", "c,d"), ("format", "csv", "db"), ("output_path", "a", "b")]:
            with self.subTest(key=key):
                self.assertEqual(config(**{key: first}), (None, "", ""))
                warning = f"[msmemscope] Warn: {key} can be set once; it stays {first!r}.\n"
                self.assertEqual(config(**{key: second}), (None, warning, ""))

    def test_old_names(self):
        message = "[msmemscope] Deprecation: '{}' is deprecated, use '{}' instead.\n"
        self.assertEqual(config(data_format="db"), (None, "", message.format("data_format", "format")))
        self.assertEqual(config(output="x"), (None, "", message.format("output", "output_path")))
        self.assertEqual(config(level="0,1"), (None, "", message.format("level=0", "level=op") + message.format("level=1", "level=kernel")))
        self.assertEqual(_control._locked, {"format": "db", "output_path": "x"})

    def test_old_and_new_name(self):
        raised, out, _ = config(format="csv", data_format="db")
        self.assertEqual((raised, out), (None, "[msmemscope] Warn: format can be set once; it stays 'csv'.\n"))
        self.assertEqual(_control._locked, {"format": "csv"})


class Describe(unittest.TestCase):
    def test_misuse(self):
        long = "é" * 65
        table = [
            (NotImplementedError, lambda: describe.describer("x")),
            (TypeError, lambda: describe.describer(owner=1)),
            (TypeError, lambda: describe.describer(1, 2)),
            (TypeError, lambda: describe.describer(1, "x", owner="x")),
            (TypeError, lambda: describe.describer(1, "x", "y")),
            (TypeError, lambda: describe.describer(owner="x")(3)),
            (ValueError, lambda: describe.describer(owner=long)),
            (NotImplementedError, lambda: describe.describer("tensor", owner="x")),
            (NotImplementedError, lambda: describe.describe_addr(1.5, [])),
            (ValueError, lambda: describe.describer(-1, owner="x")),
            (ValueError, lambda: describe.describer(1 << 64, owner="x")),
            (TypeError, lambda: describe.describe_label("x")),
            (TypeError, lambda: describe.describe_label(1, 2)),
            (TypeError, lambda: describe.describe_label("x", "2")),
            (ValueError, lambda: describe.describe_label("x", 8)),
            (ValueError, lambda: describe.undescribe_label("x", -1)),
            (ValueError, lambda: describe.describe_label(long, 0)),
            (TypeError, lambda: describe.undescribe_label(None, 1)),
            (TypeError, lambda: describe.describe_addr(1, ["xy z"])),
            (TypeError, lambda: describe.describe_addr(1, [("x",)])),
            (ValueError, lambda: describe.describe_addr(1, [("x", 9)])),
        ]
        for index, (kind, call) in enumerate(table):
            with self.subTest(index=index), self.assertRaises(kind) as raised:
                call()
            self.assertIs(type(raised.exception), kind)

    def test_longest_label(self):
        with describe.describer(owner="é" * 64):
            pass

    def test_result_and_exception_pass_through(self):
        @describe.describer(owner="x")
        def add(a, b=2):
            """Adds."""
            return a + b

        self.assertEqual((add(1), add(1, b=5), add.__name__, add.__doc__), (3, 6, "add", "Adds."))
        with self.assertRaises(KeyError), describe.describer(owner="x"):
            raise KeyError
        context = describe.describer(owner="x")
        self.assertIs(context.__enter__(), context)
        context.__exit__()

    def test_constants(self):
        names = ["FRAMEWORK", "COMPONENT", "PROCESS", "DETAIL_1", "DETAIL_2", "USER_DEFINED_1", "USER_DEFINED_2", "USER_DEFINED_3"]
        self.assertEqual([getattr(alias, name) for name in names], list(range(8)))
        self.assertIs(alias.describer, describe.describer)


class Record(unittest.TestCase):
    def test_misuse(self):
        table = [(TypeError, ()), (TypeError, (1,)), (TypeError, (b"x",)), (ValueError, ("x" * 129,)), (TypeError, ("x", "y"))]
        for kind, arguments in table:
            with self.subTest(arguments=arguments), self.assertRaises(kind):
                memscope_bpf.RecordFunction(*arguments)

    def test_both_ways(self):
        with memscope_bpf.RecordFunction("x" * 128) as record:
            pass
        self.assertEqual(record(lambda a: a + 1)(2), 3)
        with self.assertRaises(KeyError), msmemscope.RecordFunction("y"):
            raise KeyError


class Snapshot(unittest.TestCase):
    def tearDown(self):
        for name in ("torch", "torch_npu"):
            sys.modules.pop(name, None)

    def test_without_torch(self):
        table = [({"torch": None, "torch_npu": None}, "take_snapshot needs torch and torch_npu"),
                 ({"torch": types.ModuleType("torch"), "torch_npu": None}, "take_snapshot needs torch_npu")]
        for modules, message in table:
            sys.modules.update(modules)
            with self.subTest(message=message), self.assertRaises(ImportError) as raised:
                memscope_bpf.take_snapshot()
            self.assertEqual(str(raised.exception), message)
            with self.assertRaises(ImportError), memscope_bpf.TakeSnapshot():
                self.fail("not entered")

    def test_name(self):
        with self.assertRaises(TypeError):
            memscope_bpf.take_snapshot(0, 1)

    def test_no_device(self):
        """What torch_npu raises then is not the script's business: without a tracer it would not have been asked."""
        def fails(device):
            raise RuntimeError("no context\non device")

        torch = types.ModuleType("torch")
        torch.npu = types.SimpleNamespace(current_device=lambda: 0, mem_get_info=fails)
        sys.modules.update(torch=torch, torch_npu=types.ModuleType("torch_npu"))
        err, listening = io.StringIO(), types.SimpleNamespace(listening=lambda: True)
        with contextlib.redirect_stderr(err), mock.patch.object(_snapshot, "native", listening):
            memscope_bpf.take_snapshot(0, "a\nb")
        self.assertEqual(err.getvalue(), "[msmemscope] Warn: no snapshot 'a\\nb': no context\n")


class OutOfMemory(unittest.TestCase):
    def test_snapshot(self):
        """start() has torch_npu take a snapshot when memory is out, without an option and once; none without a tracer, and nothing raised."""
        observers, rows = [], []
        sizes = dict(memory_reserved=4, max_memory_reserved=5, memory_allocated=2, max_memory_allocated=3)
        npu = types.SimpleNamespace(mem_get_info=lambda device: (10, 100), **{name: lambda device, size=size: size for name, size in sizes.items()})
        torch = types.ModuleType("torch")
        torch.npu = npu
        torch_npu = types.SimpleNamespace(_C=types.SimpleNamespace(_npu_attach_out_of_memory_observer=observers.append))
        native = types.SimpleNamespace(listening=lambda: True, snapshot=lambda *place, **figures: rows.append((place, figures)))
        self.addCleanup(setattr, _snapshot, "_observes", False)
        with mock.patch.dict(sys.modules, torch=torch, torch_npu=torch_npu), mock.patch.object(_snapshot, "native", native):
            _snapshot.snapshot_when_out_of_memory()
            _snapshot.snapshot_when_out_of_memory()
            [observer] = observers
            observer(1, 512, 2, 10)
            figures = dict(reserved=4, max_reserved=5, allocated=2, max_allocated=3, total=100, free=10)
            self.assertEqual(rows, [(("OOM_Snapshot", 1), figures)])
            native.listening = lambda: False
            observer(1, 512, 2, 10)
            del npu.mem_get_info
            native.listening = lambda: True
            with contextlib.redirect_stderr(io.StringIO()) as err:
                observer(1, 512, 2, 10)
        self.assertEqual(len(rows), 1)
        self.assertTrue(err.getvalue().startswith("[msmemscope] Warn: no snapshot 'OOM_Snapshot': "), err.getvalue())

    def test_without_torch_npu(self):
        with mock.patch.dict(sys.modules, torch_npu=types.ModuleType("torch_npu")):
            _snapshot.snapshot_when_out_of_memory()
        self.assertFalse(_snapshot._observes)


class Control(unittest.TestCase):
    def test_no_tracer(self):
        """One line, once, and the script goes on."""
        script = "import msmemscope as m; m.start(); m.step(); m.stop(); m.start(); m.stop(); print(m.__name__)"
        run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
        self.assertEqual(run.stdout, "msmemscope\n")
        self.assertTrue(run.stderr.startswith("[msmemscope] Warn: no tracer is there, so nothing is collected."), run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1)
        self.assertFalse(memscope_bpf.listening())

    def test_import_brings_nothing(self):
        """What a script does not use already would make every start slower."""
        script = "import sys; before = set(sys.modules); import msmemscope.describe; print(sorted(set(sys.modules) - before))"
        # Without `site`, an installed package is not found by itself.
        where = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(memscope_bpf.__file__))}
        run = subprocess.run([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, text=True, check=True, env=where)
        brought = [name for name in eval(run.stdout) if name.split(".")[0] not in ("memscope_bpf", "msmemscope")]
        self.assertEqual(set(brought) - THERE, set())

    def test_sanitizer(self):
        """torch_npu's own switch is used; without it the call says what is missing."""
        calls = []
        sanitizer = types.ModuleType("torch_npu.npu._sanitizer")
        sanitizer.enable_npu_sanitizer = lambda: calls.append("on")
        npu = types.ModuleType("torch_npu.npu")
        npu._sanitizer = sanitizer
        modules = {"torch_npu": types.ModuleType("torch_npu"), "torch_npu.npu": npu, "torch_npu.npu._sanitizer": sanitizer}
        with mock.patch.dict(sys.modules, modules):
            self.assertIsNone(msmemscope.enable_npu_sanitizer())
        self.assertEqual(calls, ["on"])
        with mock.patch.dict(sys.modules, {"torch_npu": None}), self.assertRaises(ImportError) as raised:
            msmemscope.enable_npu_sanitizer()
        self.assertIn("enable_npu_sanitizer() needs torch_npu", str(raised.exception))

    def test_stand_in_has_all_names(self):
        native = {name for name in dir(_native.native) if not name.startswith("_")}
        stand_in = {name for name in dir(_pure) if not name.startswith("_")} - {"TYPE_CHECKING", "annotations"}
        self.assertEqual(native, stand_in)
        self.assertIsNot(_native.native, _pure)


# What `os` brings, which is there in all scripts (`-S` leaves it out). `typing` takes three times as long as all of the package.
THERE = set(eval(subprocess.run(
    [sys.executable, "-S", "-c", "import sys; before = set(sys.modules); import __future__, os; print(sorted(set(sys.modules) - before))"],
    stdout=subprocess.PIPE, text=True, check=True).stdout))


if __name__ == "__main__":
    unittest.main()

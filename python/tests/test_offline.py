"""Analyses of dumps: rows worked out by hand, what calls refuse, and that Python stays awake meanwhile."""
import contextlib
import ctypes
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

import memscope_bpf
import msmemscope
from memscope_bpf import analyzer
from msmemscope import analyzer as alias

HEADER = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)\n"


def block(number, event, time_ns, size, used=0, more=""):
    """The row of block `number` of PyTorch's pool, at 4096 times its number; `used` is what the pool holds then."""
    attr = f'"{{allocation_id:{number},addr:0x{number << 12:x},size:{size},total:1000,used:{used}{more}}}"'
    return f",{event},PTA,N/A,{time_ns},5,6,0,0x{number << 12:x},{attr},,\n"


def other(event, kind, name, time_ns):
    return f",{event},{kind},{name},{time_ns},5,6,0,N/A,,,\n"


def dump(folder, *rows, name="dump.csv"):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(HEADER + "".join(f"{index}{row}" for index, row in enumerate(rows)))
    return path


def marked(folder):
    """Marks A, B, C; block 2 is allocated between A and B and lives on, 3 is freed, 1 and 4 are outside."""
    return dump(
        folder, block(1, "MALLOC", 100, 10, 10), other("MSTX", "Mark", "m", 200), block(2, "MALLOC", 300, 20, 30),
        block(3, "MALLOC", 400, 30, 60), other("MSTX", "Mark", "m", 500), block(3, "FREE", 600, 30, 30), block(4, "MALLOC", 700, 40, 70),
        other("MSTX", "Mark", "m", 800))


def idle(folder):
    """Block 1 is used twice, and more than one operator is in between."""
    ops = [other("OP_LAUNCH", f"ATEN_{what}", f"op{op}", 200 + 10 * op + (what == "END")) for op in range(4) for what in ("START", "END")]
    access = [block(1, "ACCESS", time_ns, 64, more=",type:PTA").replace(",PTA,", ",READ,") for time_ns in (150, 300)]
    return dump(folder, block(1, "MALLOC", 100, 64, 64), access[0], *ops, access[1], block(1, "FREE", 400, 64))


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


class Tables(Folder):
    def test_leaks_by_marks(self):
        table = memscope_bpf.leaks(marked(self.folder), mark="m")
        self.assertEqual(len(table), 1)
        columns = table.to_dict()
        self.assertEqual(list(columns), table.column_names)
        row = {name: cells[0] for name, cells in columns.items() if cells[0] is not None}
        self.assertEqual(row, {
            "verdict": "leak", "pid": 5, "device": "0", "pool": "PTA", "addr": 8192, "size_bytes": 20, "allocation_id": 2, "event_id": 2,
            "freed_later": False, "confidence": "certain"})
        found = table.document["findings"]
        self.assertEqual([(leaks["marks"], len(leaks["leaks"])) for leaks in found], [(3, 1)])
        self.assertEqual(memscope_bpf.leaks(marked(self.folder), mark="m", start_index=1).to_dict()["addr"], [])

    def test_other_commands(self):
        path = marked(self.folder)
        # 1, 2 and 4 live at the end, and at the peak; 1, 2 and 3 before.
        peak = memscope_bpf.peaks(path).to_dict()
        self.assertEqual((peak["peak_bytes"], peak["owner"], peak["blocks"], peak["size_bytes"]), ([70], ["PTA"], [3], [70]))
        parts = memscope_bpf.decompose(path).to_dict()
        self.assertEqual((parts["owner"], parts["end_blocks"], parts["end_bytes"], parts["blocks"]), (["PTA"], [3], [70], [4]))
        grown = memscope_bpf.diff(path, start=150e-9, end="end").to_dict()
        self.assertEqual((grown["from_bytes"], grown["to_bytes"], grown["grown_bytes"], grown["grown_blocks"]), ([10], [70], [60], [2]))
        shrunk = memscope_bpf.diff(path, start="end", end=0).to_dict()
        self.assertEqual(shrunk["grown_bytes"], [-60])
        space = memscope_bpf.fragmentation(path).to_dict()
        self.assertTrue(set(space["pool"]) <= {"PTA"})

    def test_part_of_a_run(self):
        path = marked(self.folder)
        self.assertEqual(memscope_bpf.peaks(path, until=250e-9).to_dict()["peak_bytes"], [30])
        empty = memscope_bpf.peaks(path, since=3600)
        self.assertEqual((len(empty), empty.notes), (0, ["there is no block in what since and until leave"]))

    def test_inefficient(self):
        table = memscope_bpf.inefficient(idle(self.folder), idle_threshold=1)
        columns = table.to_dict()
        self.assertEqual((columns["kinds"], columns["addr"], columns["size_bytes"]), (["temporary_idleness"], [4096], [64]))
        self.assertIsInstance(columns["wasted_byte_seconds"][0], float)
        self.assertEqual(len(memscope_bpf.inefficient(idle(self.folder))), 0)
        self.assertEqual(len(memscope_bpf.inefficient(idle(self.folder), idle_threshold=1, mem_size=65)), 0)

    def test_compare(self):
        def run(name, size):
            ops = [other("OP_LAUNCH", f"ATEN_{what}", op, time_ns) for op, what, time_ns in
                   [("add", "START", 200), ("add", "END", 300), ("mul", "START", 400), ("mul", "END", 600)]]
            return dump(self.folder, *ops[:3], block(1, "MALLOC", 500, size), ops[3], name=name)

        table = memscope_bpf.compare(run("a.csv", 100), run("b.csv", 300))
        columns = table.to_dict()
        self.assertEqual((columns["name"], columns["kind"], columns["device"]), (["add", "mul"], ["op", "op"], [0, 0]))
        self.assertEqual(columns["base_bytes"], [0, 100])
        self.assertEqual(columns["compare_bytes"], [0, 300])
        self.assertEqual(columns["grown_bytes"], [0, 200])
        self.assertEqual([device["aligned"] for device in table.document["devices"]], [2])

    def test_misuse(self):
        path = marked(self.folder)
        m = memscope_bpf
        missing = os.path.join(self.folder, "missing.csv")
        with open(os.path.join(self.folder, "junk.csv"), "w") as file:
            file.write("not,a,dump\n")
        table = [
            (TypeError, lambda: m.leaks()), (TypeError, lambda: m.leaks(3)), (TypeError, lambda: m.leaks(path, mark=3)),
            (TypeError, lambda: m.leaks(path, start_index="0")), (ValueError, lambda: m.leaks(path, start_index=-1)),
            (TypeError, lambda: m.leaks(path, since="1s")), (ValueError, lambda: m.leaks(path, until=-1)),
            (ValueError, lambda: m.leaks(path, until=float("nan"))),
            (FileNotFoundError, lambda: m.leaks(missing)), (ValueError, lambda: m.leaks(os.path.join(self.folder, "junk.csv"))),
            (ValueError, lambda: m.inefficient(path, idle_threshold=0)), (ValueError, lambda: m.inefficient(path, inefficient_type="x")),
            (ValueError, lambda: m.inefficient(path, inefficient_type=[])), (TypeError, lambda: m.inefficient(path, mem_size=1.5)),
            (ValueError, lambda: m.diff(path)), (ValueError, lambda: m.diff(path, start="begin")),
            (ValueError, lambda: m.diff(path, start=1)), (ValueError, lambda: m.compare(path, path, level="ops")),
            (ValueError, lambda: m.compare(path, path, level="")), (ValueError, lambda: m.compare(path, path, level="kernel")),
            (ValueError, lambda: m.decompose(path, rules=missing)), (TypeError, lambda: m.leaks(path, progress=3)),
        ]
        for index, (kind, call) in enumerate(table):
            with self.subTest(index=index), self.assertRaises(kind) as raised:
                call()
            self.assertIs(type(raised.exception), kind)

    def test_missing_package(self):
        table = memscope_bpf.leaks(marked(self.folder), mark="m")
        for name, call in (("pyarrow", table.to_arrow), ("polars", table.to_polars), ("pandas", table.to_pandas)):
            there, sys.modules[name] = sys.modules.get(name), None
            with self.subTest(name=name), self.assertRaises(ImportError) as raised:
                call()
            self.assertTrue(str(raised.exception).startswith(name + " is needed"))
            del sys.modules[name]
            if there is not None:
                sys.modules[name] = there


class Schema(ctypes.Structure):
    pass


class Array(ctypes.Structure):
    pass


Schema._fields_ = [
    ("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_char_p), ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64), ("children", ctypes.POINTER(ctypes.POINTER(Schema))), ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("private_data", ctypes.c_void_p)]
Array._fields_ = [(name, ctypes.c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")] + [
    ("buffers", ctypes.POINTER(ctypes.c_void_p)), ("children", ctypes.POINTER(ctypes.POINTER(Array))), ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("private_data", ctypes.c_void_p)]


class Stream(ctypes.Structure):
    _fields_ = [
        ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Schema))),
        ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Array))),
        ("get_last_error", ctypes.c_void_p), ("release", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("private_data", ctypes.c_void_p)]


class Arrow(Folder):
    """The stream as its specification has it, read without any library."""

    def stream(self, table):
        capsule = table.__arrow_c_stream__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return capsule, Stream.from_address(pointer(capsule, b"arrow_array_stream"))

    def test_stream(self):
        table = memscope_bpf.leaks(marked(self.folder), mark="m")
        capsule, stream = self.stream(table)
        schema, array, end = Schema(), Array(), Array()
        self.assertEqual(stream.get_schema(ctypes.addressof(stream), schema), 0)
        fields = {schema.children[i].contents.name.decode(): i for i in range(schema.n_children)}
        self.assertEqual((schema.format, list(fields)), (b"+s", table.column_names))
        formats = {name: schema.children[i].contents.format for name, i in fields.items()}
        self.assertEqual([formats[name] for name in ("addr", "pool", "freed_later")], [b"L", b"U", b"b"])
        self.assertEqual(stream.get_next(ctypes.addressof(stream), array), 0)
        self.assertEqual(stream.get_next(ctypes.addressof(stream), end), 0)
        self.assertFalse(bool(end.release))
        # What was handed over outlives table and stream.
        del table, capsule
        addr = array.children[fields["addr"]].contents
        self.assertEqual((array.length, addr.length, addr.null_count, addr.n_buffers), (1, 1, 0, 2))
        self.assertEqual(ctypes.c_uint64.from_address(addr.buffers[1]).value, 8192)
        pool = array.children[fields["pool"]].contents
        ends = (ctypes.c_int64 * 2).from_address(pool.buffers[1])
        self.assertEqual((list(ends), ctypes.string_at(pool.buffers[2], 3)), ([0, 3], b"PTA"))
        step = array.children[fields["step"]].contents
        self.assertEqual((step.null_count, ctypes.c_uint8.from_address(step.buffers[0]).value & 1), (1, 0))
        for structure in (schema, array):
            structure.release(ctypes.addressof(structure))
            self.assertFalse(bool(structure.release))

    def test_nobody_takes_it(self):
        for _ in range(100):
            memscope_bpf.leaks(marked(self.folder), mark="m").__arrow_c_stream__(None)


class Awake(Folder):
    """A dump that takes a while."""

    def large(self):
        rows = [block(n, what, 1000 + 2 * n + (what == "FREE"), 512) for n in range(1, 80001) for what in ("MALLOC", "FREE")]
        return dump(self.folder, *rows)

    def test_other_threads_run_and_progress_is_told(self):
        counted, reported, done = [0], [], threading.Event()

        def count():
            while not done.is_set():
                counted[0] += 1

        counter = threading.Thread(target=count)
        path = self.large()
        counter.start()
        seen = []
        memscope_bpf.leaks(path, progress=lambda *at: (reported.append(at), seen.append(counted[0])))
        done.set()
        counter.join()
        self.assertGreater(len(reported), 1)
        self.assertGreater(seen[-1], seen[0])
        self.assertTrue({stage for stage, _, _ in reported} <= {"looking", "reading", "sorting", "analysing"}, reported)
        self.assertTrue(all(0 <= at <= total for _, at, total in reported), reported)

    def test_progress_that_raises(self):
        def refuse(*_):
            raise KeyError("enough")

        with self.assertRaises(KeyError):
            memscope_bpf.leaks(self.large(), progress=refuse)

    def test_interrupt(self):
        """The exception comes while most is still to be done."""
        reported = []

        def interrupt(*at):
            reported.append(at)
            os.kill(os.getpid(), signal.SIGINT)

        with self.assertRaises(KeyboardInterrupt):
            memscope_bpf.leaks(self.large(), progress=interrupt)
        self.assertLess(len(reported), 3)


class Reference(Folder):
    """The calls of msMemScope: they print, and return nothing."""

    def call(self, function, *arguments, **settings):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertIsNone(function(*arguments, **settings))
        self.assertEqual(err.getvalue(), "")
        return out.getvalue()

    def test_check_leaks(self):
        path = marked(self.folder)
        expected = "Direct Pytorch Caching memory pool leak of "
        for text in (self.call(msmemscope.check_leaks, path, "m", 0),
                     self.call(msmemscope.check_leaks, input_path=path, mstx_info="m", start_index=0),
                     self.call(alias.check_leaks, path, mstx_info="m", start_index=0),
                     self.call(msmemscope.analyze, "leaks", input_path=path, mstx_info="m", start_index=0),
                     self.call(alias.LeaksAnalyzer().analyze, alias.LeaksConfig(path, "m", 0))):
            self.assertEqual(text.count(expected), 1, text)
            self.assertIn(" at 0x0000000000002000 ", text)

    def test_check_inefficient(self):
        path = idle(self.folder)
        with open(path) as file:
            before = file.read()
        text = self.call(msmemscope.check_inefficient, path, 0, "temporary_idleness", 1)
        self.assertIn("temporary_idleness", text)
        with open(path) as file:
            after = file.read()
        changed = [(old, new) for old, new in zip(before.splitlines(), after.splitlines()) if old != new]
        self.assertEqual(len(changed), 1)
        self.assertIn(",inefficient_type:", changed[0][1])
        found = self.call(msmemscope.analyze, "inefficient", input_path=path)
        judged, verdict = found.splitlines()
        self.assertIn("1 block, 64 bytes, freed in it", judged)
        self.assertEqual(verdict, "No inefficient use of memory was found on device 0: 1 block with 2 uses.")
        empty = dump(self.folder, other("MARK", "N/A", "only a mark", 100), name="empty.csv")
        found = self.call(msmemscope.analyze, "inefficient", input_path=empty)
        self.assertEqual(found, "Inefficient use was not judged: there are no blocks.\n")

    def test_what_there_is(self):
        self.assertEqual(msmemscope.list_analyzers(), ["leaks", "inefficient"])
        self.assertEqual(msmemscope.get_analyzer_config("leaks"),
                         {"config_class": "LeaksConfig", "parameters": ["input_path", "mstx_info", "start_index"]})
        self.assertEqual(msmemscope.get_analyzer_config("inefficient"), {
            "config_class": "InefficientConfig", "parameters": ["input_path", "mem_size", "inefficient_type", "idle_threshold"]})
        for call in (msmemscope.get_analyzer_config, msmemscope.analyze):
            for bad in ("peaks", None, ["leaks"]):
                with self.subTest(bad=bad), self.assertRaises(ValueError) as raised:
                    call(bad)
                self.assertIn("leaks, inefficient", str(raised.exception))

    def test_misuse(self):
        path, text = marked(self.folder), os.path.join(self.folder, "dump.txt")
        database = os.path.join(self.folder, "dump.db")
        for name in (text, database):
            with open(name, "w"):
                pass
        leaks, inefficient = analyzer.LeaksConfig, analyzer.InefficientConfig
        table = [
            (TypeError, leaks, ()), (TypeError, leaks, (path, "m")), (TypeError, leaks, (3, "m", 0)),
            (FileNotFoundError, leaks, (path + "x", "m", 0)), (FileNotFoundError, leaks, (self.folder, "m", 0)),
            (ValueError, leaks, ("", "m", 0)), (ValueError, leaks, ("x" * 4097, "m", 0)), (ValueError, leaks, ("a\0b", "m", 0)),
            (ValueError, leaks, (text, "m", 0)), (ValueError, leaks, (database, "m", 0)),
            (TypeError, leaks, (path, None, 0)), (ValueError, leaks, (path, "", 0)), (ValueError, leaks, (path, " \t", 0)),
            (ValueError, leaks, (path, "m", -1)), (ValueError, leaks, (path, "m", "0")), (ValueError, leaks, (path, "m", 1.0)),
            (ValueError, inefficient, (text,)), (ValueError, inefficient, (path, -1)), (ValueError, inefficient, (path, "0")),
            (ValueError, inefficient, (path, 0, "idle")), (ValueError, inefficient, (path, 0, [])),
            (ValueError, inefficient, (path, 0, ["early_allocation", "x"])), (ValueError, inefficient, (path, 0, 3)),
            (ValueError, inefficient, (path, 0, None, 0)), (ValueError, inefficient, (path, 0, None, None)),
            (ValueError, inefficient, (path, True)), (ValueError, leaks, (path, "m", True)), (TypeError, inefficient, ()),
            (TypeError, inefficient, (path.encode(),)), (FileNotFoundError, inefficient, (database + "x",)),
            (FileNotFoundError, inefficient, (os.path.join(self.folder, "no", "folder.csv"),)), (ValueError, leaks, (path + "/x.csv", "m", 0)),
            (ValueError, leaks, (self.huge(1), "m", 0)),
        ]
        for kind, config, arguments in table:
            with self.subTest(arguments=arguments), self.assertRaises(kind) as raised:
                config(*arguments)
            self.assertIs(type(raised.exception), kind)

    def huge(self, beyond):
        """An empty file of 8 GiB, and this many bytes more."""
        path = os.path.join(self.folder, f"huge{beyond}.csv")
        with open(path, "w") as file:
            file.truncate((8 << 30) + beyond)
        return path

    def test_limits(self):
        """The largest file and suffixes in capitals are taken, and the longest path is looked for."""
        self.assertEqual(analyzer.LeaksConfig(self.huge(0), "m", 0).start_index, 0)
        with self.assertRaises(FileNotFoundError):
            analyzer.LeaksConfig("q/" * 2045 + ".csv", "m", 0)
        os.rename(marked(self.folder), os.path.join(self.folder, "DUMP.CSV"))
        analyzer.InefficientConfig(os.path.join(self.folder, "DUMP.CSV"), 0, ["early_allocation", "temporary_idleness"], 1)

    def test_foreign_file(self):
        """It is reported, and used."""
        path = marked(self.folder)
        there = os.stat(path)
        err = io.StringIO()
        foreign = types.SimpleNamespace(st_mode=there.st_mode, st_size=there.st_size, st_uid=os.geteuid() + 4711)
        with contextlib.redirect_stderr(err), mock.patch.object(analyzer.os, "stat", return_value=foreign):
            analyzer.LeaksConfig(path, "m", 0)
        self.assertEqual(err.getvalue(), f"[msmemscope] Warn: `{path}` belongs to another user.\n")

    def test_rights(self):
        """Of a file that may not be read or written; root may do everything, so this is another user's process."""
        path = marked(self.folder)
        script = ("import os, sys; from memscope_bpf import analyzer\n"
                  "os.getuid() == 0 and os.setuid(65534)\n"
                  "for config, arguments in ((analyzer.LeaksConfig, ('m', 0)), (analyzer.InefficientConfig, ())):\n"
                  "    try: config(sys.argv[1], *arguments); print('taken')\n"
                  "    except PermissionError as error: print(error)\n")
        os.chmod(self.folder, 0o755)

        def said(mode):
            os.chmod(path, mode)
            # The module has to be imported before rights are given up, by what it needs.
            run = subprocess.run([sys.executable, "-c", "import memscope_bpf.analyzer\n" + script, path], stdout=subprocess.PIPE, text=True)
            return run.stdout.splitlines()

        self.assertEqual(said(0o000), [f"input_path: `{path}` cannot be read"] * 2)
        self.assertEqual(said(0o444), ["taken", f"input_path: `{path}` cannot be written"])


if __name__ == "__main__":
    unittest.main()

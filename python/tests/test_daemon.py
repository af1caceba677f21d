"""start() and the daemon: what is asked, what answers do, and that nothing else fails. The daemon here is a thread with a list of answers."""
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

from memscope_bpf import _control, _daemon, _pure


class Daemon:
    """Answers connections, one after another, with these bytes; `None` says nothing until the end."""

    def __init__(self, *answers):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "socket")
        self.answers, self.requests = answers, []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        for answer in self.answers:
            connection, _ = self.listener.accept()
            with connection:
                line = b""
                while not line.endswith(b"\n"):
                    part = connection.recv(65536)
                    if not part:
                        break
                    line += part
                self.requests.append(line)
                if answer is None:
                    self.ended.wait()
                else:
                    with contextlib.suppress(OSError):
                        connection.sendall(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.ended.set()
        self.thread.join()
        self.listener.close()
        self.folder.cleanup()


def reply(status, text="", version=1):
    return json.dumps({"version": version, "status": status, "text": text}).encode() + b"\n"


class Native:
    """Stands in for the native module, and notes what it is called for."""

    def __init__(self, listening=False):
        self.is_listening, self.calls = listening, []

    def listening(self):
        return self.is_listening

    def settings(self, *bits):
        self.named = bits

    def config(self, *bits):
        self.calls.append(("config", *bits))

    def start(self):
        self.calls.append(("start",))

    def trace_hand_over(self):
        pass


def start(path, native):
    """What start() says on stderr."""
    err = io.StringIO()
    with mock.patch.object(_control, "native", native), mock.patch.dict(os.environ, MEMSCOPE_BPF_SOCKET=path), contextlib.redirect_stderr(err):
        _control.start()
    return err.getvalue()


class Start(unittest.TestCase):
    def setUp(self):
        self.reset()
        self.addCleanup(self.reset)

    @staticmethod
    def reset():
        _control._locked.clear()
        _control._wanted.clear()
        _control._told = _control._silent = False
        _control._bits = _control._output_path = None
        _control._traced_pid = 0

    def test_request(self):
        """Settings as they were given, and the path as it was absolute at config()."""
        native = Native()
        here = os.getcwd()
        with Daemon(reply("ready")) as daemon, mock.patch.object(_control, "native", native):
            _control.config(output_path="out", events="alloc", format="csv")
            os.chdir("/")
            try:
                self.assertEqual(start(daemon.path, native), "")
            finally:
                os.chdir(here)
        wanted = {"events": "alloc", "format": "csv", "output_path": os.path.join(here, "out")}
        self.assertEqual([json.loads(line) for line in daemon.requests], [{"version": 1, "settings": wanted}])
        # Once for whoever listened then, once for the tracer that came.
        self.assertEqual(native.calls, [("config", 1, 1, 1 << 32), ("config", 1, 1, 1 << 32), ("start",)])
        # The daemon's tracer has format and path: it only gets that events were named.
        self.assertEqual(native.named, (0, 0, 1))

    def test_older_blocks_are_told_of(self):
        """A tracer that comes with start() knows no block of before: what torch_npu's pool holds then is said, once, and not if that is nothing."""
        message = "[msmemscope] Warn: 4096 bytes of torch_npu's pool were allocated before the tracer came: their blocks have no rows. "
        for allocated, status, line in [(4096, "ready", message), (0, "ready", ""), (4096, "traced", "")]:
            npu = types.SimpleNamespace(is_initialized=lambda: True, memory_allocated=lambda: allocated)
            modules = {"torch_npu": types.SimpleNamespace(npu=npu)}
            self.reset()
            with self.subTest(allocated=allocated, status=status), mock.patch.dict(sys.modules, modules), Daemon(reply(status)) as daemon:
                said = start(daemon.path, Native())
                self.assertTrue(said.startswith(line) and said.count("\n") == bool(line), said)

    def test_defaults(self):
        native = Native()
        with Daemon(reply("ready")) as daemon:
            self.assertEqual(start(daemon.path, native), "")
        wanted = {"output_path": os.path.abspath("memscopeDumpResults")}
        self.assertEqual([json.loads(line) for line in daemon.requests], [{"version": 1, "settings": wanted}])
        self.assertEqual(native.calls, [("start",)])

    def test_settings_are_those_of_the_last_config(self):
        native = Native()
        with Daemon(reply("traced")) as daemon, mock.patch.object(_control, "native", native):
            _control.config(format="db", level="kernel", output_path="/a")
            _control.config(device="cpu")
            start(daemon.path, native)
        wanted = {"device": "cpu", "format": "db", "output_path": "/a"}
        self.assertEqual(json.loads(daemon.requests[0])["settings"], wanted)
        self.assertEqual(native.calls[2:], [("start",)], "a tracer that was there knows the settings")

    def test_asked_early(self):
        """The first config() asks if the user wants it; start() does not ask again."""
        for early, asked in [("1", 1), ("0", 0), ("", 0)]:
            native = Native()
            self.reset()
            with self.subTest(early=early), Daemon(*[reply("ready")] * asked) as daemon, mock.patch.object(_control, "native", native):
                with mock.patch.dict(os.environ, MEMSCOPE_BPF_SOCKET=daemon.path, MEMSCOPE_BPF_EARLY=early):
                    _control.config(events="alloc", output_path="/a")
                self.assertEqual(len(daemon.requests), asked)
                native.is_listening = True
                if asked:
                    self.assertEqual(start(daemon.path, native), "")
                    self.assertEqual(json.loads(daemon.requests[0])["settings"], {"events": "alloc", "output_path": "/a"})
                    self.assertEqual(len(daemon.requests), 1)

    def test_asked_once_while_somebody_listens(self):
        """Also where somebody listens from the start: that may be to another process."""
        with Daemon(reply("ready")) as daemon:
            for _ in range(3):
                self.assertEqual(start(daemon.path, Native(listening=True)), "")
        self.assertEqual(len(daemon.requests), 1)

    def test_asked_again_when_the_tracer_is_gone(self):
        with Daemon(reply("ready"), reply("ready")) as daemon:
            start(daemon.path, Native())
            start(daemon.path, Native())
        self.assertEqual(len(daemon.requests), 2)

    def test_refusal_is_told_once(self):
        with Daemon(reply("refused", "two\nlines \x1b[2J"), reply("refused")) as daemon:
            said = start(daemon.path, Native()) + start(daemon.path, Native())
        self.assertEqual(said, "[msmemscope] Warn: the daemon of memscope-bpf does not trace this process: two\\nlines \\x1b[2J.\n")

    def test_odd_answers(self):
        odd = [b"", b"\n", b"ready\n", b"[]\n", b'{"version":1}\n', b"\xff\n", b"[" * 4096, b"x" * 100000, reply("ready", version=2),
               reply("fine"), reply("ready", ["no text"]), b'{"version":1,"status":["ready"],"text":""}\n']
        with Daemon(*odd) as daemon:
            for answer in odd:
                with self.subTest(answer=answer[:50]):
                    self.assertEqual(_daemon.ask(daemon.path, {}), ("refused", "its answer is not understood"))

    def test_long_answers_are_cut(self):
        with Daemon(reply("refused", "\x07\ud800é" * 200)) as daemon:
            answer = _daemon.ask(daemon.path, {})
        self.assertTrue(answer.text.isprintable() and answer.text.startswith("\\x07"), answer)
        self.assertLessEqual(len(answer.text), 4 * 400)

    def test_no_answer(self):
        """It is waited for once."""
        with Daemon(None) as daemon, mock.patch.object(_daemon, "_PATIENCE_S", 0.2):
            said = start(daemon.path, Native())
            self.assertEqual(start(daemon.path, Native()), "")
        self.assertEqual(said, "[msmemscope] Warn: the daemon of memscope-bpf does not trace this process: it did not answer within 0.2 s.\n")
        self.assertEqual(len(daemon.requests), 1)

    def test_nobody_listens(self):
        message = "[msmemscope] Warn: no tracer is there, so nothing is collected."
        with tempfile.TemporaryDirectory() as folder:
            dead = os.path.join(folder, "dead")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(dead)
            for path in (dead, os.path.join(folder, "none"), ""):
                with self.subTest(path=path):
                    self.reset()
                    self.assertTrue(start(path, Native()).startswith(message))
                    self.reset()
                    self.assertEqual(start(path, Native(listening=True)), "")

    def test_no_socket(self):
        """A daemon that cannot be asked causes a message, and no exception."""
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "file")
            with open(file, "w"):
                pass
            for path in (folder, folder + "/" + "/." * 100):
                with self.subTest(path=path):
                    self.assertEqual(_daemon.ask(path, {}).status, "absent" if path == folder else "refused")
            self.assertIn(_daemon.ask(file, {}).status, ("absent", "refused"))

    def test_interpreter_without_markers(self):
        with Daemon() as daemon:
            said = start(daemon.path, _pure)
        self.assertEqual(said, f"[msmemscope] Warn: {_pure._no_markers}\n")
        self.assertEqual(daemon.requests, [])

    def test_folder_that_is_gone(self):
        """A relative path means nothing then, and start() goes on."""
        code = (
            "import memscope_bpf, os, tempfile; folder = tempfile.mkdtemp(); os.chdir(folder); os.rmdir(folder)\n"
            "memscope_bpf.config(output_path='x'); memscope_bpf.start(); print('on')"
        )
        run = subprocess.run([sys.executable, "-B", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        self.assertEqual((run.returncode, run.stdout), (0, "on\n"), run.stderr)

    def test_nothing_is_imported_without_a_daemon(self):
        code = (
            "import sys; before = set(sys.modules); import memscope_bpf; memscope_bpf.start()\n"
            "print(sorted({'socket', 'json', 'memscope_bpf._daemon'} & (set(sys.modules) - before)))"
        )
        run = subprocess.run([sys.executable, "-B", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        self.assertEqual((run.returncode, run.stdout), (0, "[]\n"), run.stderr)


if __name__ == "__main__":
    unittest.main()

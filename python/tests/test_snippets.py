"""Scripts as people write them for msMemScope (snippets/), from its documentation's ways of using each call: they run as they are, without a
tracer. With one they do so in the live tests.
"""
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LEAK = "Direct Hal memory leak of 2.0 Mb(s) at 0x0000000000001000 in Index 2."
# What each prints: whole lines of the tool, and the number of leak lines.
STDERR = {
    "config": ["[msmemscope] Deprecation: 'output' is deprecated, use 'output_path' instead.",
               "[msmemscope] Deprecation: 'data_format' is deprecated, use 'format' instead.",
               "[msmemscope] Deprecation: 'level=0' is deprecated, use 'level=op' instead."],
}
QUIET = {"take_snapshot", "check_leaks", "check_inefficient"}


class Snippets(unittest.TestCase):
    def test_run(self):
        names = sorted(os.path.splitext(name)[0] for name in os.listdir(os.path.join(HERE, "snippets")) if name.endswith(".py"))
        self.assertEqual(len(names), 11)
        for name in names:
            with self.subTest(name=name), tempfile.TemporaryDirectory() as folder:
                run = subprocess.run([sys.executable, "-B", os.path.join(HERE, "snippet.py"), name], cwd=folder,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
                self.assertEqual(run.returncode, 0, run.stderr)
                lines = run.stderr.splitlines()
                # start() says that nothing is collected; before 3.9 there is no Python trace, which is said, too.
                no_tracer = [line for line in lines if line.startswith("[msmemscope] Warn: no tracer is there, so nothing is collected.")]
                too_old = [line for line in lines if line == "[msmemscope] Warn: the Python trace needs Python 3.9."]
                self.assertEqual(len(no_tracer), 0 if name in QUIET else 1, run.stderr)
                self.assertEqual(bool(too_old), name == "tracer" and sys.version_info < (3, 9), run.stderr)
                self.assertEqual([line for line in lines if line not in no_tracer + too_old and "is not active" not in line],
                                 STDERR.get(name, []))
                self.assertEqual(run.stdout.count(LEAK), 2 if name == "check_leaks" else 0, run.stdout)


if __name__ == "__main__":
    unittest.main()

"""Scripts as people write them for msMemScope, from its documentation's ways of using each call: they run as they are, without a tracer."""
import os
import subprocess
import sys
import tempfile
import unittest

DUMP = """\
ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)
1,MSTX,Mark,step start,1000,7,8,0,N/A,,,
2,MALLOC,HAL,N/A,1100,7,8,0,0x1000,"{allocation_id:1,addr:0x1000,size:2097152,owner:CANN@APP}",,
3,MSTX,Mark,step start,1200,7,8,0,N/A,,,
4,MSTX,Mark,step start,1300,7,8,0,N/A,,,
"""

# A torch and a torch_npu with what snapshots and labels ask for.
TORCH = """\
import sys, types
torch = types.ModuleType("torch")
torch.npu = types.SimpleNamespace(
    current_device=lambda: 0, mem_get_info=lambda device: (1, 2), memory_reserved=lambda device: 1, max_memory_reserved=lambda device: 1,
    memory_allocated=lambda device: 1, max_memory_allocated=lambda device: 1)
torch.randn = lambda *shape: types.SimpleNamespace(data_ptr=lambda: 4096)
sys.modules.update(torch=torch, torch_npu=types.ModuleType("torch_npu"))
def train(): return "trained"
"""

SNIPPETS = {
    "config, start, stop": """
import msmemscope
msmemscope.config(call_stack="c:10,python:5", events="launch,alloc,free", level="0", device="npu:0", analysis="leaks,decompose",
                  watch="op0,op1,full-content", output="./output", data_format="csv")
msmemscope.start()
train()
msmemscope.stop()
""",
    "several windows": """
import msmemscope
msmemscope.start()
msmemscope.stop()
msmemscope.config(events="alloc,free,access,launch", level="kernel,op", call_stack="c,python", analysis="leaks,inefficient,decompose",
                  format="csv", output_path="./output")
msmemscope.start()
msmemscope.stop()
""",
    "a loop of steps": """
import msmemscope
msmemscope.start()
for epoch in range(6):
    train()
    msmemscope.step()
msmemscope.stop()
""",
    "RecordFunction": """
import msmemscope
from msmemscope import RecordFunction
@RecordFunction("forward_pass")
def forward(x):
    return x + 1
assert forward(1) == 2
with RecordFunction("backward"):
    train()
with msmemscope.RecordFunction("again"):
    train()
""",
    "tracer": """
import msmemscope
msmemscope.start()
msmemscope.tracer.start()
train()
msmemscope.tracer.stop()
msmemscope.stop()
msmemscope.config(events="traceback")
msmemscope.start()
train()
msmemscope.stop()
""",
    "take_snapshot": """
import msmemscope
msmemscope.take_snapshot(device_mask=0, name="one")
msmemscope.take_snapshot(0)
msmemscope.take_snapshot([0, 1], name="a list")
msmemscope.take_snapshot((0, 1), name="a tuple")
msmemscope.take_snapshot()
with msmemscope.TakeSnapshot(device_mask=0, name="block"):
    train()
@msmemscope.TakeSnapshot(name="function")
def work():
    return train()
assert work() == "trained"
""",
    "describe": """
import torch
import msmemscope.describe as describe
@describe.describer(owner="test1")
def work():
    return train()
assert work() == "trained"
with describe.describer(owner="test2"):
    train()
t = torch.randn(10, 10)
describe.describer(t, owner="test3")
""",
    "check_leaks": """
import msmemscope
msmemscope.check_leaks(input_path="memscope_dump.csv", mstx_info="step start", start_index=0)
msmemscope.analyze("leaks", input_path="memscope_dump.csv", mstx_info="step start", start_index=0)
assert msmemscope.list_analyzers() == ["leaks", "inefficient"]
assert msmemscope.get_analyzer_config("leaks")["config_class"] == "LeaksConfig"
""",
    "check_inefficient": """
import msmemscope
msmemscope.check_inefficient(input_path="memscope_dump.csv", mem_size=0, inefficient_type=["early_allocation"], idle_threshold=3000)
msmemscope.analyze("inefficient", input_path="memscope_dump.csv", mem_size=1, inefficient_type="temporary_idleness", idle_threshold=1)
""",
    "framework hooks": """
import msmemscope
msmemscope.init_framework_hooks("pytorch", "2.9.0", "fsdp2", "decompose")
msmemscope.init_framework_hooks("vllm_ascend", "11.0", "worker", "snapshot")
msmemscope.cleanup_framework_hooks()
""",
}


class Snippets(unittest.TestCase):
    def test_run(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "memscope_dump.csv"), "w") as file:
                file.write(DUMP)
            for name, text in SNIPPETS.items():
                with self.subTest(name=name):
                    run = subprocess.run(
                        [sys.executable, "-B", "-c", TORCH + text], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                    self.assertEqual(run.returncode, 0, run.stderr)
                    told = [line for line in run.stderr.splitlines() if "[msmemscope]" not in line]
                    self.assertEqual(told, [])
                    leaks = run.stdout.count("Direct Hal memory leak of 2.0 Mb(s) at 0x0000000000001000 in Index 2.")
                    self.assertEqual(leaks, 2 if name == "check_leaks" else 0, run.stdout)


if __name__ == "__main__":
    unittest.main()

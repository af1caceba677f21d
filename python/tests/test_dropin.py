"""What scripts find under msMemScope's names (contract 9.1): imported, called, or refused by name."""
import contextlib
import importlib
import io
import subprocess
import sys
import types
import unittest
from unittest import mock

import msmemscope
from memscope_bpf._native import native

# Every module of the reference's package, with what it has that does not begin with `_`.
MODULES = {
    "": "RecordFunction TakeSnapshot analyze analyzer check_inefficient check_leaks cleanup_framework_hooks config describe "
        "enable_npu_sanitizer get_analyzer_config hijacker init_framework_hooks list_analyzers memscope_hijack_manager record_function start "
        "step stop take_snapshot tracer utils watcher",
    "analyzer": "InefficientAnalyzer InefficientConfig LeaksAnalyzer LeaksConfig analyze base check_inefficient check_leaks "
                "get_analyzer_config inefficient leaks list_analyzers utility_function",
    "analyzer.base": "AnalysisConfig BaseAnalyzer INPUT_STR_MAX_LEN MAX_FILE_SIZE",
    "analyzer.inefficient": "InefficientAnalyzer InefficientConfig check_inefficient",
    "analyzer.leaks": "LeaksAnalyzer LeaksConfig check_leaks",
    "analyzer.utility_function": "safe_convert_int",
    "aten_collection": "AtenCollector aten_collector disable_aten_collector enable_aten_collector",
    "cpu_tensor_collection": "disable_cpu_tensor_collect enable_cpu_tensor_collect on_device_ready",
    "describe": "COMPONENT DETAIL_1 DETAIL_2 FRAMEWORK PROCESS USER_DEFINED_1 USER_DEFINED_2 USER_DEFINED_3 describe_addr describe_label "
                "describer undescribe_label",
    "hijacker": "hijack_manager hijack_map hijack_utility taggers",
    "hijacker.hijack_manager": "MemScopeHijackManager disable_decompose_hooks enable_decompose_hooks memscope_hijack_manager",
    "hijacker.hijack_map": "MemScopeHijackMap MemScopeHooklet memscope_hijack_map",
    "hijacker.hijack_utility": "HiJackerManager HijackHandler HijackerUnit POST_HOOK PRE_HOOK REPLACE hijacker release",
    "hijacker.taggers": "VllmAscendTaggers",
    "optimizer_step_hook": "OptimizerStepHook append_tensor_info disable_optimizer_step_hook enable_optimizer_step_hook "
                           "global_optimizer_step_hook optimizer_step_hook process_param",
    "record_function": "RecordFunction",
    "utils": "check_packages import_with_optional_deps",
}


class Names(unittest.TestCase):
    def test_every_name_is_there(self):
        """After `import msmemscope` alone, each name of each module is reached by attributes, and each module by its import."""
        script = "import msmemscope\n" + "\n".join(
            f"msmemscope{'.' + module if module else ''}.{name}" for module, names in MODULES.items() for name in names.split())
        subprocess.run([sys.executable, "-c", script], check=True)
        for module in MODULES:
            with self.subTest(module=module):
                importlib.import_module("msmemscope." + module if module else "msmemscope")

    def test_take_snapshot_is_the_function(self):
        """A module has its name, too; importing that changes nothing."""
        script = ("import msmemscope; from msmemscope.take_snapshot import TakeSnapshot, get_device_memory_info, take_snapshot; "
                  "import msmemscope.take_snapshot; assert msmemscope.take_snapshot is take_snapshot; "
                  "assert msmemscope.TakeSnapshot is TakeSnapshot")
        subprocess.run([sys.executable, "-c", script], check=True)

    def test_native_half(self):
        from msmemscope import _msmemscope

        for name in ("start", "stop", "step", "config", "_take_snapshot", "_enable_npu_sanitizer", "_report_cpu_tensor", "_watcher",
                     "_tracer", "_describer", "_record_function"):
            self.assertTrue(hasattr(_msmemscope, name), name)
        self.assertIs(_msmemscope._tracer, msmemscope.tracer)

    def test_no_other_names(self):
        with self.assertRaises(AttributeError):
            msmemscope.no_such_thing
        self.assertIn("hijacker", dir(msmemscope))

    def test_refused_by_name(self):
        """What has no counterpart says so when it is used, not when it is imported."""
        from msmemscope.cpu_tensor_collection import enable_cpu_tensor_collect
        from msmemscope.hijacker import hijack_map, hijack_utility

        for call, message in [
            (lambda: hijack_utility.hijacker(stub=print, module="os", function="getpid"), "msmemscope has no hijacker: "),
            (lambda: hijack_map.memscope_hijack_map.get_hooklet_list(), "msmemscope has no memscope_hijack_map.get_hooklet_list: "),
            (enable_cpu_tensor_collect, "msmemscope has no enable_cpu_tensor_collect: "),
        ]:
            with self.subTest(message=message), self.assertRaises(NotImplementedError) as raised:
                call()
            self.assertTrue(str(raised.exception).startswith(message), raised.exception)


class Describer(unittest.TestCase):
    def setUp(self):
        # The class of ranges stays what it is; calls are looked at.
        self.said = []
        patched = mock.patch.object(importlib.import_module("memscope_bpf.describe"), "native", types.SimpleNamespace(
            describe_addr=lambda *call: self.said.append(call), push_label=native.push_label, pop_label=native.pop_label))
        patched.start()
        self.addCleanup(patched.stop)

    def test_label_behind_the_block(self):
        """Both ways to name the label are one; a tensor stands for its address."""
        tensor = types.SimpleNamespace(data_ptr=lambda: 0x3000)
        msmemscope.describe.describer(0x1000, "first")
        msmemscope.describe.describer(0x2000, owner="second")
        msmemscope.describe.describer(tensor, "third")
        msmemscope.describe.describer(obj=tensor, owner="fourth")
        self.assertEqual(self.said, [(0x1000, [("first", 5)]), (0x2000, [("second", 5)]), (0x3000, [("third", 5)]), (0x3000, [("fourth", 5)])])

    def test_no_block(self):
        """`None` is no block: the label is a range's."""
        with msmemscope.describe.describer(None, "range"):
            self.assertEqual(native.current_labels()[5], "range")
        self.assertEqual((native.current_labels(), self.said), ([None] * 8, []))

    def test_native_describer(self):
        from msmemscope._msmemscope import _describer

        _describer.describe("a")
        _describer.describe_label("b", 2)
        self.assertEqual(native.current_labels(), [None, None, "b", None, None, "a", None, None])
        _describer.undescribe("a")
        _describer.undescribe_label("b", 2)
        self.assertEqual(native.current_labels(), [None] * 8)


class Tensor:
    def __init__(self, address, device="npu:0", local=None):
        self.address, self.device, self._local_tensor, self.grad = address, device, local, None

    def data_ptr(self):
        return self.address


class Optimizers(unittest.TestCase):
    def test_what_a_step_labels(self):
        """Weights, gradients and states on NPUs, in this order; of a tensor with parts elsewhere its own part."""
        from msmemscope import optimizer_step_hook

        weight, host = Tensor(0, local=Tensor(0x100)), Tensor(0x900, "cpu")
        weight.grad = Tensor(0x200)
        states = {weight: {"step": Tensor(0x300), "lr": 0.1, "exp_avg": Tensor(0, local=Tensor(0x400))}}
        optimizer = types.SimpleNamespace(param_groups=[{"params": [weight, host]}], state=states)
        said = []
        with mock.patch.object(optimizer_step_hook, "describe_addr", lambda *call: said.append(call)):
            optimizer_step_hook.global_optimizer_step_hook(optimizer, (), {})
        self.assertEqual(said, [
            (0x100, [("weight", 3)]), (0x200, [("gradient", 3)]), (0x300, [("optimizer_state", 3)]), (0x400, [("optimizer_state", 3)])])


class Helpers(unittest.TestCase):
    def test_numbers_of_cells(self):
        from msmemscope.analyzer.utility_function import safe_convert_int

        for value, number, message in [
            ("12", 12, ""), (7, 7, ""), ("1.5", None, "WARNING: Cannot convert '1.5' to int (line 3); the row is passed over.\n"),
            (None, None, "WARNING: Cannot convert None to int (line 3); the row is passed over.\n"),
        ]:
            out = io.StringIO()
            with self.subTest(value=value), contextlib.redirect_stdout(out):
                self.assertEqual(safe_convert_int(value, context="line 3"), number)
            self.assertEqual(out.getvalue(), message)

    def test_optional_packages(self):
        from msmemscope.utils import check_packages, import_with_optional_deps

        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            check_packages(["os", "no_such_package_1"])
        self.assertEqual(out.getvalue(), "[msmemscope]: Import no_such_package_1 failed! Please check it.\n")
        self.assertIs(import_with_optional_deps("record_function", "RecordFunction", ["os"]), msmemscope.RecordFunction)
        with self.assertRaises(ImportError) as raised:
            import_with_optional_deps("x", "f", ["no_such_package_1"])(1, a=2)
        self.assertIn("no_such_package_1", str(raised.exception))

    def test_vllm_taggers(self):
        """The labels that hooks give, by the reference's class."""
        from memscope_bpf import _vllm
        from msmemscope.hijacker.taggers import VllmAscendTaggers

        model = types.SimpleNamespace(named_parameters=lambda: [("layer.weight", Tensor(0x10)), ("lora_a", Tensor(0x20))])
        said = []
        with mock.patch.object(_vllm, "native", types.SimpleNamespace(describe_addr=lambda *call: said.append(call))):
            VllmAscendTaggers.tag_model_weights(None, types.SimpleNamespace(model=model))
        self.assertEqual(said, [(0x20, [("vllm", 1), ("weights", 3), ("lora", 4)]), (0x10, [("vllm", 1), ("weights", 3)])])


if __name__ == "__main__":
    unittest.main()

"""Framework hooks, on frameworks made up for it: labels where they belong, and functions as they were afterwards."""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

import memscope_bpf
import msmemscope
from memscope_bpf import _hooks, _optimizer, _vllm
from memscope_bpf._native import native

FSDP = "torch.distributed.fsdp."
STATE = """
from memscope_bpf._native import native
seen = []
def see(name):
    seen.append((name, [label for label in native.current_labels() if label]))
"""
# As the modules of torch 2.9 have them: one imports functions of another by name.
TORCH = {
    FSDP + "_fully_shard._fsdp_state": """
class FSDPState:
    def _pre_forward(self): see("_pre_forward")
    def _post_forward(self): see("_post_forward")
    def _pre_backward(self, fails=False):
        see("_pre_backward")
        if fails: raise KeyError
""",
    FSDP + "_fully_shard._fsdp_param_group": """
from torch.distributed.fsdp._fully_shard._fsdp_collectives import foreach_all_gather, foreach_reduce
class FSDPParamGroup:
    def post_backward(self, fails=False):
        see("post_backward")
        if fails: raise KeyError
    def gather(self): foreach_all_gather()
""",
    FSDP + "_fully_shard._fsdp_param": """
class FSDPParam:
    def _init_sharded_param(self): see("_init_sharded_param")
    def init_all_gather_outputs(self): see("init_all_gather_outputs")
""",
    FSDP + "_fully_shard._fsdp_collectives": """
def foreach_all_gather(): see("foreach_all_gather")
def foreach_reduce(): see("foreach_reduce")
""",
    "vllm_ascend.worker.model_runner_v1": """
class NPUModelRunner:
    def load_model(self): see("load_model")
    def profile_run(self): see("profile_run")
    def initialize_kv_cache(self): pass
    def initialize_kv_cache_tensors(self, config): return {}
    def execute_model(self, *arguments, **keywords): see("execute_model"); return arguments, keywords
    @staticmethod
    def capture_model(): see("capture_model")
""",
    "verl.trainer.main_ppo": """
class TaskRunner:
    def run(self): return "ran"
""",
}


def write(folder, modules):
    for name, text in modules.items():
        path = os.path.join(folder, *name.split("."))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".py", "w") as file:
            file.write(STATE + text)
    for place, _, files in os.walk(folder):
        if "__init__.py" not in files:
            with open(os.path.join(place, "__init__.py"), "w"):
                pass


class Versions(unittest.TestCase):
    def test_keys(self):
        table = [
            ("*", "2.1", True), ("2.10+", "2.14.0a0", True), ("2.6-2.9", "2.9.7", True), ("2.6-2.9", "2.10.0", False),
            ("2.6+", "2.5.9", False), ("0.12.1", "0.12.1", True), ("2.6-2.9", "2.6.0+cpu", True), ("11.0", "11.0.0", True),
            ("11.0", "11.0.1", False), ("2.6-2.9", "2.5.9", False), ("2.6-2.9.1", "2.9.2", False), ("1+", "1", True),
        ]
        for key, version, expected in table:
            with self.subTest(key=key, version=version):
                self.assertEqual(_hooks.matches(key, version), expected)
        for bad in ("", "a1", "v2.6"):
            with self.subTest(bad=bad), self.assertRaises(ValueError):
                _hooks.numbers(bad)

    def test_rows(self):
        def row(versions, *places, kind="decompose"):
            return {"versions": versions, "type": kind, "places": [{"at": place} for place in places]}

        rows = [row("2.6+", "a", "b"), row("*", "b", "c"), row("2.7", "d"), row("2.6+", "e", kind="snapshot")]
        places = lambda *wanted: [place["at"] for place in _hooks.rows_for(rows, *wanted)]
        self.assertEqual(places("2.6.1", "decompose"), ["a", "b", "c"])
        self.assertEqual(places("2.7.0", "decompose"), ["d"])
        self.assertEqual(places("2.5", "decompose"), ["b", "c"])
        self.assertEqual(places("2.6", "snapshot"), ["e"])

    def test_how_many(self):
        """As many functions as the contract has."""
        def count(framework, version, component, kind):
            rows = _hooks._table()[framework]["components"][component]
            places = _hooks.rows_for(rows, version, kind)
            return sum(2 if "open" in place else 1 + len(place.get("also_in", ())) for place in places)

        self.assertEqual(count("vllm_ascend", "11.0", "worker", "decompose"), 6)
        self.assertEqual(count("vllm_ascend", "11.0", "worker", "snapshot"), 6)
        self.assertEqual(count("pytorch", "2.6.0", "fsdp1", "decompose"), 6)
        self.assertEqual(count("pytorch", "2.9.1", "fsdp2", "decompose"), 10)
        self.assertEqual(count("pytorch", "2.10.0", "fsdp2", "decompose"), 8)
        self.assertEqual(count("verl", "0.7.0", "TaskRunner", "snapshot"), 5)
        self.assertEqual(count("mindspeed_llm", "0.12.1", "training", "snapshot"), 22)


class Hooks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        write(folder.name, TORCH)
        before = set(sys.modules)
        sys.path.insert(0, folder.name)

        def forget():
            msmemscope.cleanup_framework_hooks()
            sys.path.remove(folder.name)
            for name in set(sys.modules) - before:
                if name.split(".")[0] in ("torch", "vllm_ascend", "verl"):
                    del sys.modules[name]

        self.addCleanup(forget)

    def init(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertIsNone(msmemscope.init_framework_hooks(*arguments))
        return out.getvalue()

    def load(self, name):
        __import__(name)
        return sys.modules[name]

    def test_misuse(self):
        table = [
            (("jax", "1", "x", "decompose"), "framework 'jax'; there are some for: pytorch, vllm_ascend, mindspeed_llm, verl."),
            (("pytorch", "2.6", "fsdp3", "decompose"), "component 'fsdp3'; it has: fsdp1, fsdp2."),
            (("pytorch", "2.6", "fsdp1", "leaks"), "type of hooks 'leaks'; there are: decompose, snapshot."),
            (("pytorch", "2.5", "fsdp1", "decompose"), "for version 2.5; there are: 2.6+ (decompose)."),
            (("pytorch", "2.6", "fsdp1", "snapshot"), "hooks of type snapshot for version 2.6;"),
            (("pytorch", "new", "fsdp1", "decompose"), "'new' is no version;"), (("pytorch", 2.6, "fsdp1", "decompose"), "2.6 is no version;"),
        ]
        for arguments, expected in table:
            with self.subTest(arguments=arguments):
                said = self.init(*arguments)
                self.assertTrue(said.startswith("[msmemscope] Error: ") and expected in said, said)
        with self.assertRaises(TypeError):
            msmemscope.init_framework_hooks("pytorch")

    def test_windows(self):
        """From one function to another: what is in between has labels, which the functions alone would not."""
        self.assertEqual(self.init("pytorch", "2.9.0", "fsdp2", "decompose"), "")
        module = self.load(FSDP + "_fully_shard._fsdp_state")
        group = self.load(FSDP + "_fully_shard._fsdp_param_group")
        state = module.FSDPState()
        module.see("before")
        state._pre_forward()
        module.see("in between")
        state._pre_forward()
        state._post_forward()
        module.see("after")
        state._post_forward()
        labels = ["fsdp2", "activation"]
        self.assertEqual(module.seen, [
            ("before", []), ("_pre_forward", labels), ("in between", labels), ("_pre_forward", labels), ("_post_forward", labels),
            ("after", []), ("_post_forward", [])])
        del module.seen[:]
        state._pre_backward()
        other = threading.Thread(target=lambda: module.see("another thread"))
        other.start()
        other.join()
        with self.assertRaises(KeyError):
            group.FSDPParamGroup().post_backward(fails=True)
        module.see("after")
        self.assertEqual(module.seen, [("_pre_backward", ["fsdp2", "backward"]), ("another thread", []), ("after", [])])
        self.assertEqual(group.seen, [("post_backward", ["fsdp2", "backward"])])
        del module.seen[:]
        with self.assertRaises(KeyError):
            state._pre_backward(fails=True)
        module.see("after one that failed to begin")
        self.assertEqual(module.seen, [("_pre_backward", ["fsdp2", "backward"]), ("after one that failed to begin", [])])

    def test_functions_that_are_imported_by_name(self):
        """Wrapped once, wherever they are called from; and quiet afterwards, whoever has kept them."""
        self.init("pytorch", "2.9.0", "fsdp2", "decompose")
        group = self.load(FSDP + "_fully_shard._fsdp_param_group")
        collectives = self.load(FSDP + "_fully_shard._fsdp_collectives")
        kept = group.foreach_all_gather
        group.FSDPParamGroup().gather()
        collectives.foreach_all_gather()
        labels = ["fsdp2", "all_gather_output"]
        self.assertEqual(collectives.seen, [("foreach_all_gather", labels)] * 2)
        self.assertEqual(kept.__name__, "foreach_all_gather")
        self.assertFalse(hasattr(kept.__wrapped__, "__wrapped__"))
        msmemscope.cleanup_framework_hooks()
        for call in (kept, group.foreach_all_gather, collectives.foreach_all_gather):
            call()
        self.assertEqual(collectives.seen[2:], [("foreach_all_gather", [])] * 3)
        self.assertFalse(hasattr(collectives.foreach_all_gather, "__wrapped__"))

    def test_modules_that_are_there_already(self):
        runner = self.load("vllm_ascend.worker.model_runner_v1")
        before = dict(vars(runner.NPUModelRunner))
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.init("vllm_ascend", "11.0", "worker", "decompose")
        self.assertEqual(err.getvalue(), "")
        call = runner.NPUModelRunner().execute_model(1, two=2)
        self.assertEqual(call, ((1,), {"two": 2}))
        runner.NPUModelRunner.capture_model()
        runner.NPUModelRunner().profile_run()
        self.assertEqual(runner.seen, [
            ("execute_model", ["vllm", "serve"]), ("capture_model", ["graph_pool"]), ("profile_run", ["vllm", "profile"])])
        msmemscope.cleanup_framework_hooks()
        self.assertEqual({name: vars(runner.NPUModelRunner)[name] for name in before if name[0] != "_"},
                         {name: value for name, value in before.items() if name[0] != "_"})

    def test_missing_functions_are_told(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            self.init("verl", "0.7.0", "TaskRunner", "snapshot")
            runner = self.load("verl.trainer.main_ppo").TaskRunner()
            self.assertEqual(runner.run(), "ran")
        self.assertEqual(err.getvalue().count("verl.trainer.main_ppo has no TaskRunner.add_"), 4)
        self.assertEqual(err.getvalue().count("\n"), 4)

    def test_nothing_is_imported(self):
        script = ("import sys, msmemscope; before = set(sys.modules); msmemscope.config(analysis='decompose')\n"
                  "print([name for name in set(sys.modules) - before if name.split('.')[0] in ('torch', 'vllm_ascend', 'verl')])")
        run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(run.stdout, "[]\n")

    def test_chosen_by_hand(self):
        """Then nothing is registered by itself."""
        self.init("pytorch", "2.9.0", "fsdp2", "decompose")
        _hooks.init_all()
        self.assertEqual(list(_hooks._registered), [("pytorch", "fsdp2", "decompose")])
        self.init("pytorch", "2.9.0", "fsdp2", "decompose")
        self.assertEqual(len(_hooks._switches), 1)

    def test_table(self):
        """It says of each place what it needs, and nothing else."""
        with open(os.path.join(os.path.dirname(_hooks.__file__), "hooks.json")) as file:
            frameworks = json.load(file)["frameworks"]
        keys = set()
        for known in frameworks.values():
            for rows in known["components"].values():
                for row in rows:
                    self.assertIn(row["type"], _hooks.TYPES)
                    for place in row["places"]:
                        keys.add(tuple(sorted(place)))
                        for label, level in place.get("labels", ()):
                            self.assertTrue(isinstance(label, str) and 1 <= level <= 4)
                        if "after" in place:
                            self.assertTrue(callable(getattr(_vllm, place["after"])))
        self.assertEqual(keys, {("at",), ("at", "labels"), ("also_in", "at", "labels"), ("close", "labels", "open"), ("after", "at")})


class Tensor:
    def __init__(self, address, device="npu", grad=None):
        self._address, self.device, self.grad = address, types.SimpleNamespace(type=device), grad

    def data_ptr(self):
        return self._address


class Shared:
    """Of several devices: the part that is here has the memory."""

    def __init__(self, local):
        self._local_tensor, self.grad = local, None


class Addresses(unittest.TestCase):
    """Records the labels of addresses, instead of the markers."""

    def setUp(self):
        self.described = described = []
        for module in (_vllm, _optimizer):
            there = module.native
            module.native = types.SimpleNamespace(describe_addr=lambda *what: described.append(what), listening=lambda: True)
            self.addCleanup(setattr, module, "native", there)
        _optimizer._told.clear()

    def test_weights(self):
        model = types.SimpleNamespace(
            named_parameters=lambda: [("w", Tensor(16)), ("w_lora_a", Tensor(32)), ("tied", Tensor(16))],
            named_buffers=lambda: [("b", Tensor(48)), ("w again", Tensor(16)), ("empty", Tensor(0))])
        drafter = types.SimpleNamespace(model=types.SimpleNamespace(named_parameters=lambda: [("d", Tensor(64))]))
        _vllm.vllm_weights(None, types.SimpleNamespace(model=model, drafter=drafter))
        weights = [("vllm", 1), ("weights", 3)]
        self.assertEqual(self.described, [(32, weights + [("lora", 4)]), (64, weights + [("drafter", 4)]), (16, weights), (48, weights)])

    def test_caches(self):
        def spec(name):
            return type(name, (), {})()

        groups = [types.SimpleNamespace(layer_names=layers, kv_cache_spec=kind) for layers, kind in (
            (["a"], spec("FullAttentionSpec")), (["m"], spec("MambaSpec")), (["h"], spec("HiddenStateCacheSpec")), (["n"], None))]
        config = types.SimpleNamespace(kv_cache_groups=groups)
        caches = {"a": (Tensor(1), Tensor(2)), "m": [Tensor(3)], "h": Tensor(4), "n": Tensor(5), "other": Tensor(6)}
        _vllm.vllm_kv_caches(caches, None, config)
        cache = [("vllm", 1), ("kv_cache", 3)]
        self.assertEqual(self.described, [(1, cache + [("attn", 4)]), (2, cache + [("attn", 4)]), (3, cache + [("mamba", 4)]),
                                     (4, cache + [("hidden_state", 4)])])
        self.assertEqual(_vllm.kind_of(spec("MambaCacheSpec")), "mamba")

    def test_optimizer(self):
        weights = [Tensor(1, grad=Tensor(2)), Tensor(3, "cpu"), Shared(Tensor(7))]
        state = {weights[0]: {"step": 5, "average": Tensor(4)}, 1: {"average": Tensor(6, "cpu")}, 2: {"average": Shared(Tensor(9))}}
        optimizer = types.SimpleNamespace(param_groups=[{"params": weights}], state=state)
        _optimizer.after_step(optimizer)
        label = lambda address, text: (address, [(text, 3)])
        first = [label(1, "weight"), label(2, "gradient"), label(7, "weight"), label(4, "optimizer_state"), label(9, "optimizer_state")]
        self.assertEqual(self.described, first)
        weights[0].grad = Tensor(8)
        _optimizer.after_step(optimizer)
        self.assertEqual(self.described[len(first):], [label(8, "gradient")])

    def test_another_tensor_with_identity_and_address_of_one_that_is_gone(self):
        """Labels are of blocks: a weight that was made where another one was is a new block, which has to be labelled."""
        def step(identity):
            weights = [Tensor(16)]
            with mock.patch.object(_optimizer, "id", lambda _tensor: identity, create=True):
                for _ in range(2):
                    _optimizer.after_step(types.SimpleNamespace(param_groups=[{"params": weights}], state={}))

        step(1)
        step(1)
        self.assertEqual(self.described, [(16, [("weight", 3)])] * 2)

    def test_a_later_tracer_is_told_again(self):
        optimizer = types.SimpleNamespace(param_groups=[{"params": [Tensor(16)]}], state={})
        for listening in (True, False, True):
            _optimizer.native.listening = lambda: listening
            _optimizer.after_step(optimizer)
        self.assertEqual(self.described, [(16, [("weight", 3)])] * 2)

    def test_optimizer_of_another_kind(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            _optimizer.after_step(object())
        self.assertIn("what object works on has no labels", err.getvalue())


if __name__ == "__main__":
    unittest.main()

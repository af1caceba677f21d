"""Drop-in for msMemScope's package of this name: the same calls, with the effects of memscope_bpf."""
import sys as _sys

from memscope_bpf import (
    RecordFunction, TakeSnapshot, __version__, cleanup_framework_hooks, config, enable_npu_sanitizer, init_framework_hooks, start, step, stop,
    tracer, watcher,
)

from .analyzer import analyze, check_inefficient, check_leaks, get_analyzer_config, list_analyzers
# The submodule first: the function of its name stands in its place from here on.
from .take_snapshot import take_snapshot

# True to checkers.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

__all__ = [
    "RecordFunction", "TakeSnapshot", "analyze", "check_inefficient", "check_leaks", "cleanup_framework_hooks", "config",
    "enable_npu_sanitizer", "get_analyzer_config", "init_framework_hooks", "list_analyzers", "start", "step", "stop", "take_snapshot", "tracer",
    "watcher",
]
__memscope_bpf__ = __version__

# msMemScope's import brings them all. Here each is imported when it is first asked for.
_SUBMODULES = (
    "_msmemscope", "aten_collection", "cpu_tensor_collection", "describe", "hijacker", "optimizer_step_hook", "record_function", "utils",
)


def __getattr__(name: str) -> "Any":
    if name in _SUBMODULES:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    if name in ("_tracer", "_watcher"):
        return globals()[name[1:]]
    if name == "memscope_hijack_manager":
        from .hijacker.hijack_manager import memscope_hijack_manager

        return memscope_hijack_manager
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "List[str]":
    return sorted({*globals(), *_SUBMODULES})


# Before version 2.5 torch loads no backend by itself: scripts rely on msMemScope's own import.
if "torch" in _sys.modules:
    try:
        import torch_npu as _torch_npu  # noqa: F401
    except Exception:  # whatever is wrong with it, the script would not have seen it here
        pass

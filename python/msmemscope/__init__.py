"""Drop-in for msMemScope's package of this name: the same calls, whose effects are those of memscope_bpf."""
import sys as _sys

from memscope_bpf import (
    RecordFunction, TakeSnapshot, __version__, cleanup_framework_hooks, config, enable_npu_sanitizer, init_framework_hooks, start, step, stop,
    take_snapshot, tracer, watcher,
)

from .analyzer import analyze, check_inefficient, check_leaks, get_analyzer_config, list_analyzers

__all__ = [
    "RecordFunction", "TakeSnapshot", "analyze", "check_inefficient", "check_leaks", "cleanup_framework_hooks", "config",
    "enable_npu_sanitizer", "get_analyzer_config", "init_framework_hooks", "list_analyzers", "start", "step", "stop", "take_snapshot", "tracer",
    "watcher",
]
__memscope_bpf__ = __version__

# Before version 2.5 torch loads no backend by itself: scripts rely on msMemScope's own import.
if "torch" in _sys.modules:
    try:
        import torch_npu as _torch_npu  # noqa: F401
    except Exception:  # whatever is wrong with it, the script would not have seen it here
        pass

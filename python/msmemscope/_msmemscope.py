"""msMemScope's native half, by its names."""
from __future__ import annotations

from memscope_bpf import config, enable_npu_sanitizer, start, step, stop
from memscope_bpf import tracer as _tracer
from memscope_bpf import watcher as _watcher
from memscope_bpf import describe as _describe
from memscope_bpf._check import text as _text
from memscope_bpf._refuse import refused as _refused
from memscope_bpf._snapshot import tell_figures as _take_snapshot

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

__all__ = [
    "_describer", "_enable_npu_sanitizer", "_record_function", "_report_cpu_tensor", "_take_snapshot", "_tracer", "_watcher", "config",
    "start", "step", "stop",
]


def _enable_npu_sanitizer() -> None:
    """Its marks are always read; what sends them is switched on by enable_npu_sanitizer()."""


_report_cpu_tensor = _refused("_report_cpu_tensor", "tensors in host memory are not followed")


class _Describer:
    describe_label = staticmethod(_describe.describe_label)
    undescribe_label = staticmethod(_describe.undescribe_label)
    describe_addr = staticmethod(_describe.describe_addr)

    @staticmethod
    def describe(owner: str) -> None:
        """What this thread allocates has the user's label, until undescribe()."""
        _describe.describer(owner=owner).__enter__()

    @staticmethod
    def undescribe(owner: str) -> None:
        """Takes the user's newest label back."""
        _describe.describer(owner=owner).__exit__()


class _RecordFunction:
    def __init__(self) -> None:
        self._open: Dict[str, Any] = {}

    def record_start(self, name: str) -> None:
        """A range of the Python trace begins."""
        from memscope_bpf import RecordFunction

        self._open.setdefault(_text(name, "name"), []).append(RecordFunction(name).__enter__())

    def record_end(self, name: str) -> None:
        """It ends; one that has not begun is passed over."""
        ranges = self._open.get(_text(name, "name"))
        if ranges:
            ranges.pop().__exit__()


_describer = _Describer()
_record_function = _RecordFunction()

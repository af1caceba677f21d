"""What stands in for the native half: the same names, and nothing happens. No tracer can have a probe here. The analyses are not there."""
from __future__ import annotations

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, TypeVar

    _Self = TypeVar("_Self")

# Said instead of looking for a tracer.
_no_markers = (
    "this interpreter cannot load the native module with the tracer's markers, so nothing is collected. "
    "Builds of CPython with a global lock can, on x86-64 and aarch64."
)


class _Range:
    def __init__(self, *_arguments: object, **_keywords: object) -> None:
        pass

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass


class LabelRange(_Range):
    def set_label(self, text: str) -> None:
        pass


class NamedRange(_Range):
    def set_name(self, text: str) -> None:
        pass


def listening() -> bool:
    return False


def current_labels() -> List[Optional[str]]:
    return [None] * 8


def _nothing(*_arguments: object, **_keywords: object) -> None:
    pass


config = settings = start = stop = step = push_label = pop_label = describe_addr = snapshot = watch = unwatch = _nothing
trace_begin = trace_end = trace_forked = trace_hand_over = trace_named = trace_profile = trace_profile_end = trace_thread = _nothing
trace_enter = trace_leave = trace_call = trace_call_end = _nothing


class Found:
    pass


def _analysis(*_arguments: object) -> Any:
    raise ImportError(
        "the analyses need the native module, which this interpreter cannot load; the commands of memscope-bpf do the same")


leaks = inefficient = ask = difference = comparison = _analysis

"""The Python trace: a row for each call of a Python or C function, with its begin and end, as long as something is collected."""
from __future__ import annotations

import os
import sys

from ._native import native

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

_FOLDERS = [os.path.dirname(os.path.abspath(__file__)) + os.sep,
            os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "msmemscope") + os.sep]
_MODULE = "nn.Module: "

# Before, the interpreter calls a function of ours.
_MONITORING = sys.version_info >= (3, 12)

# Callables that undo what was put up; None: nothing is.
_undo: Optional[List[Callable[[], Any]]] = None
_fork_is_heard = False


class Tracer:
    """start() and stop(). `config(events="traceback")` does the same for each window of collection."""

    __slots__ = ("_is_active",)

    def __init__(self) -> None:
        self._is_active = False

    def start(self) -> None:
        """Calls have rows from here on. Without a tracer there are none, and nothing is slower; they begin with the next start() at which
        one is there."""
        if self._is_active:
            _warn("the Python trace is active already")
        elif sys.version_info < (3, 9):
            _warn("the Python trace needs Python 3.9")
        else:
            self._is_active = True
            begin()

    def stop(self) -> None:
        """No longer. Calls that are open then have rows without an end."""
        if not self._is_active:
            _warn("the Python trace is not active")
        else:
            self._is_active = False
            end()

    def window_begins(self, wanted: bool) -> None:
        """Collection begins; `wanted` is whether calls are to have rows for as long as it lasts."""
        if wanted and not self._is_active and sys.version_info < (3, 9):
            _warn("the Python trace needs Python 3.9")
        elif wanted or self._is_active:
            begin()

    def window_ends(self) -> None:
        """Collection ends."""
        if self._is_active:
            native.trace_hand_over()
        else:
            end()


tracer = Tracer()


def _warn(text: str) -> None:
    print(f"[msmemscope] Warn: {text}.", file=sys.stderr)


def begin() -> None:
    """Starts reports of calls, if a tracer is there."""
    global _undo, _fork_is_heard
    if _undo is not None or not native.listening():
        return
    undo = _monitoring() if _MONITORING else _profile()
    if undo is None:
        return
    if not _fork_is_heard:
        _fork_is_heard = True
        os.register_at_fork(after_in_child=native.trace_forked)
        import atexit

        atexit.register(end)
    undo.extend(_modules())
    _undo = undo
    native.trace_begin(_FOLDERS)
    # Last: of what comes in between there would be rows.
    if not _MONITORING and not native.trace_profile(True):
        end()
        _warn("this interpreter does not report its calls; there is no Python trace")


def end() -> None:
    """Ends reports of calls."""
    global _undo
    if _undo is None:
        return
    native.trace_end()
    undo, _undo = _undo, None
    for step in undo:
        step()


def _monitoring() -> Optional[List[Callable[[], Any]]]:
    """From 3.12 on: one callback for each kind of event, in all threads."""
    monitoring: Any = getattr(sys, "monitoring")
    tool = next((tool for tool in (2, 3, 4) if monitoring.get_tool(tool) is None), None)
    if tool is None:
        _warn("other tools take all places for monitoring calls; there is no Python trace")
        return None
    monitoring.use_tool_id(tool, "memscope-bpf")
    events = monitoring.events
    callbacks = {
        native.trace_enter: (events.PY_START, events.PY_RESUME, events.PY_THROW),
        native.trace_leave: (events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND),
        native.trace_call: (events.CALL,),
        native.trace_call_end: (events.C_RETURN, events.C_RAISE),
    }
    wanted = 0
    for callback, kinds in callbacks.items():
        for kind in kinds:
            monitoring.register_callback(tool, kind, callback)
            wanted |= kind
    # Those of C functions come with CALL, and may not be asked for.
    monitoring.set_events(tool, wanted & ~(events.C_RETURN | events.C_RAISE))
    return [lambda: monitoring.set_events(tool, 0), lambda: monitoring.free_tool_id(tool)]


def _profile() -> Optional[List[Callable[[], Any]]]:
    """Before: a function that the interpreter calls, thread by thread."""
    import threading

    if sys.getprofile() is not None:
        _warn("another profiler is at work; there is no Python trace")
        return None
    threading.setprofile(_thread_begins)
    return [lambda: threading.setprofile(None), native.trace_profile_end]


def _thread_begins(frame: Any, event: str, _argument: Any) -> None:
    """A new thread reaches Python's own profiler first."""
    if _undo is None:
        sys.setprofile(None)
    else:
        native.trace_thread(frame)


def _modules() -> List[Callable[[], Any]]:
    """Calls of torch's modules, if torch is there."""
    module = sys.modules.get("torch.nn.modules.module")
    if module is None:
        return []
    try:
        before = module.register_module_forward_pre_hook(
            lambda called, _: native.trace_named(_MODULE + type(called).__name__, True))
        after = module.register_module_forward_hook(
            lambda called, _, __: native.trace_named(_MODULE + type(called).__name__, False))
    except (AttributeError, TypeError):  # another torch than is known
        return []
    return [before.remove, after.remove]

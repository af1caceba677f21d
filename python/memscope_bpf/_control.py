"""config, start, stop, step."""
from __future__ import annotations

import os
import sys

from ._native import native
from ._tracer import tracer

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Tuple

_OLD = {"data_format": "format", "output": "output_path"}
_ONCE = ("watch", "format", "output_path")
_FAILED = "Set msmemscope trace config failed!"
_SOCKET = "/run/memscope-bpf/daemon.sock"
_OUTPUT = "memscopeDumpResults"
# Bits of the settings that choose rows.
_ROWS = 7

# Keys that can be set once, and are.
_locked: Dict[str, str] = {}
_told = False
# What config() said last: for a tracer that the daemon starts, and for the marker that reports it.
_wanted: Dict[str, str] = {}
_bits: Optional[Tuple[int, int, int]] = None
_named: Tuple[int, int, int] = (0, 0, 0)
_output_path: Optional[str] = None
# The process that the daemon traces.
_traced_pid = 0
# The daemon has let a start() wait in vain: the next ones do not wait.
_silent = False
# Windows of collection have a Python trace.
_trace = False


def config(**settings: str) -> None:
    """Says what is wanted; everything that is not named has its default again, but for watch, format and output_path, which can be set once.

    Collection waits for start(), if there was none. Keys and values are those of the command line: device, level, events,
    call_stack, analysis, watch, format, output_path; all are str.

    TypeError: a value is no str. ValueError: no key, an unknown one, a bad value; nothing has changed then.
    """
    global _trace, _bits, _named, _output_path
    # The dictionary of settings costs an import of `re`.
    from . import _settings

    if not settings:
        raise ValueError("config() needs at least one setting")
    for key, value in settings.items():
        if not isinstance(value, str):
            raise TypeError(f"config() wants str for {key}, not {type(value).__name__}")
    new: Dict[str, str] = {}
    twice = []
    for key, value in settings.items():
        name = _OLD.get(key, key)
        if name != key:
            _deprecated(key, name)
        if name not in _settings.KEYS:
            raise ValueError(f"{_FAILED} {key}: no such setting")
        if name in new or name in _locked:
            twice.append(name)
        else:
            new[name] = value
    try:
        bits = _settings.check(new, _deprecated)
    except ValueError as error:
        raise ValueError(f"{_FAILED} {error}") from None
    for name in twice:
        print(f"[msmemscope] Warn: {name} can be set once; it stays {_locked.get(name, new.get(name))!r}.")
    _locked.update((name, new[name]) for name in _ONCE if name in new)
    _trace = _settings.traceback(new.get("events", ""))
    _wanted.clear()
    _wanted.update({name: value for name, value in _locked.items() if name != "output_path"}, **new)
    if "output_path" in new:
        # The tracer has another current folder, and the script may change its own.
        _output_path = _absolute(new["output_path"])
    _bits, _named = bits, _settings.named(new)
    if os.environ.get("MEMSCOPE_BPF_EARLY") == "1":
        _find_tracer()
    native.settings(*_named)
    native.config(*bits)
    if "decompose" in _settings.items(new.get("analysis", "")):
        from . import _hooks

        _hooks.init_all()


def _deprecated(old: str, new: str) -> None:
    print(f"[msmemscope] Deprecation: '{old}' is deprecated, use '{new}' instead.", file=sys.stderr)


def _absolute(path: str) -> str:
    """As it is, if there is no current folder any more: the daemon says what is wrong with it."""
    try:
        return os.path.abspath(path)
    except OSError:
        return path


def _warn(text: str) -> None:
    """Says once why nothing is collected."""
    global _told
    if not _told:
        _told = True
        print(f"[msmemscope] Warn: {text}", file=sys.stderr)


def _warn_of_older_blocks() -> None:
    """The tracer came just now: says what torch_npu has handed out before, of which it knows nothing."""
    npu = getattr(sys.modules.get("torch_npu"), "npu", None)
    try:
        allocated = npu.memory_allocated() if npu is not None and npu.is_initialized() else 0
    except Exception:  # another torch_npu than is known: nothing can be said
        return
    if allocated:
        print(
            f"[msmemscope] Warn: {allocated} bytes of torch_npu's pool were allocated before the tracer came: their blocks have no rows. "
            "They have rows under `memscope-bpf run`, or if the tracer comes first: by an earlier start(), or by config() with "
            "MEMSCOPE_BPF_EARLY=1 in the environment.", file=sys.stderr)


def _find_tracer() -> None:
    """Has the daemon trace this process, if there is a daemon; waits at most 20 seconds."""
    global _traced_pid, _silent
    listening = native.listening()
    # Whoever listens may listen to another process that uses the same file of this package. The daemon knows.
    if listening and _traced_pid == os.getpid():
        return
    why_not = getattr(native, "_no_markers", None)
    if why_not:
        _warn(why_not)
        return
    path = os.environ.get("MEMSCOPE_BPF_SOCKET", _SOCKET)
    if path and not _silent and os.path.exists(path):
        from . import _daemon

        settings = {**_wanted, "output_path": _output_path or _absolute(_OUTPUT)}
        answer = _daemon.ask(path, settings)
        if answer.status in ("ready", "traced"):
            _traced_pid = os.getpid()
            if answer.status == "ready" and _bits is not None:
                # It was not there when config() was called, and has watch, format and output path from it.
                analyses, depths, named = _named
                native.settings(analyses, depths, named & _ROWS)
                native.config(*_bits)
            if answer.status == "ready":
                _warn_of_older_blocks()
            return
        _silent = answer.status == "silent"
        if answer.status != "absent":
            _warn(f"the daemon of memscope-bpf does not trace this process: {answer.text}.")
            return
    if not listening:
        _warn(
            "no tracer is there, so nothing is collected. Run the script by `memscope-bpf run -- ...`, "
            "attach with `memscope-bpf --pid`, or start `memscope-bpf daemon`."
        )


def start() -> None:
    """Collection begins; blocks that are live already are reported, too. It may begin and end several times.

    A daemon, if there is one, is asked for a tracer. Without a tracer nothing is collected, and one line on stderr says so, once.
    """
    _find_tracer()
    if native.listening():
        from ._snapshot import snapshot_when_out_of_memory

        snapshot_when_out_of_memory()
    # What there is of a Python trace is from before.
    native.trace_hand_over()
    native.start()
    tracer.window_begins(_trace)


def stop() -> None:
    """Collection ends."""
    tracer.window_ends()
    native.stop()


def step() -> None:
    """A step ends, and the next begins. Counts only while something is collected."""
    native.step()


def listening() -> bool:
    """Whether a tracer is there."""
    return native.listening()

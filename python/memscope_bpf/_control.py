"""config, start, stop, step."""
import sys
from typing import Dict

from ._native import native
from ._tracer import tracer

_OLD = {"data_format": "format", "output": "output_path"}
_ONCE = ("watch", "format", "output_path")
_FAILED = "Set msmemscope trace config failed!"

# Keys that can be set once, and are.
_locked: Dict[str, str] = {}
_told = False
# Windows of collection have a Python trace.
_trace = False


def config(**settings: str) -> None:
    """Says what is wanted; everything that is not named has its default again, but for watch, format and output_path, which can be set once.

    Collection waits for start(), if there was none. Keys and values are those of the command line: device, level, events,
    call_stack, analysis, watch, format, output_path; all are str.

    TypeError: a value is no str. ValueError: no key, an unknown one, a bad value; nothing has changed then.
    """
    global _trace
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
    native.config(*bits)
    if "decompose" in _settings.items(new.get("analysis", "")):
        from . import _hooks

        _hooks.init_all()


def _deprecated(old: str, new: str) -> None:
    print(f"[msmemscope] Deprecation: '{old}' is deprecated, use '{new}' instead.", file=sys.stderr)


def start() -> None:
    """Collection begins; blocks that are live already are told, too. It may begin and end several times.

    Without a tracer nothing is collected, and one line on stderr says so, once.
    """
    global _told
    if not native.listening() and not _told:
        _told = True
        print(
            "[msmemscope] Warn: no tracer is there, so nothing is collected. Run the script by `memscope-bpf run -- ...`, "
            "or attach with `memscope-bpf --pid`.",
            file=sys.stderr,
        )
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

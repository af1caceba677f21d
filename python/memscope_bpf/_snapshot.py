"""Snapshots of what torch_npu's pool and the current device hold."""
from __future__ import annotations

import sys

from ._native import native
from ._record import wrapped

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar, Union

    _Function = TypeVar("_Function", bound=Callable[..., Any])
    _Mask = Optional[Union[int, Sequence[int]]]


def take_snapshot(device_mask: _Mask = None, name: str = "Memory Snapshot") -> None:
    """One SNAPSHOT row of the current device, if `device_mask` (a number, or several) has it; also without start().

    Where torch_npu cannot say what there is, as before a device is set, a line on stderr says so, and there is no row.

    ImportError: torch or torch_npu are not installed. TypeError: the name is no str.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be str, not {type(name).__name__}")
    npu = _npu()
    device = npu.current_device()
    if isinstance(device_mask, (list, tuple)):
        wanted = device in device_mask
    elif isinstance(device_mask, int):
        wanted = device == device_mask
    else:
        print("[msmemscope] Info: device_mask names no device; the snapshot is of the current one.")
        wanted = True
    if wanted and native.listening():
        try:
            _mark(npu, device, name)
        except RuntimeError as error:
            # Without a tracer it would not have been asked.
            print(f"[msmemscope] Warn: no snapshot {name!r}: {(str(error).splitlines() or [''])[0]}", file=sys.stderr)


def take_snapshot_here(name: str) -> None:
    """One of the current device, if a tracer is there."""
    if native.listening():
        npu = _npu()
        _mark(npu, npu.current_device(), name)


def get_device_memory_info(device: int) -> Dict[str, int]:
    """What torch_npu's pool and a device hold, in bytes, by msMemScope's names. ImportError: torch or torch_npu are not installed."""
    return _figures(_npu(), device)


# torch_npu calls what is below when memory is out; it cannot be taken back.
_observes = False


def snapshot_when_out_of_memory() -> None:
    """Has a snapshot `OOM_Snapshot` taken whenever torch_npu's pool gets no memory, from here on, if torch_npu is imported already."""
    global _observes
    attach = getattr(getattr(sys.modules.get("torch_npu"), "_C", None), "_npu_attach_out_of_memory_observer", None)
    if attach is None or _observes:
        return
    _observes = True
    try:
        attach(_out_of_memory)
    except Exception as error:  # another torch_npu than is known
        print(f"[msmemscope] Warn: no snapshots when memory is out: {error!r}", file=sys.stderr)


def _out_of_memory(device: int, *_sizes: int) -> None:
    """Called by torch_npu, just before it raises its error: nothing of ours may come in its place."""
    try:
        if native.listening():
            _mark(_npu(), device, "OOM_Snapshot")
    except Exception as error:
        print(f"[msmemscope] Warn: no snapshot 'OOM_Snapshot': {error!r}", file=sys.stderr)


def _figures(npu: Any, device: int) -> Dict[str, int]:
    free, total = npu.mem_get_info(device)
    return {
        "device": device,
        "memory_reserved": npu.memory_reserved(device),
        "max_memory_reserved": npu.max_memory_reserved(device),
        "memory_allocated": npu.memory_allocated(device),
        "max_memory_allocated": npu.max_memory_allocated(device),
        "total_memory": total,
        "free_memory": free,
    }


def _mark(npu: Any, device: int, name: str) -> None:
    tell_figures({**_figures(npu, device), "name": name})


def tell_figures(figures: Dict[str, Any]) -> None:
    """One SNAPSHOT row of what get_device_memory_info() gives, with a `name`."""
    native.snapshot(
        figures["name"],
        figures["device"],
        reserved=figures["memory_reserved"],
        max_reserved=figures["max_memory_reserved"],
        allocated=figures["memory_allocated"],
        max_allocated=figures["max_memory_allocated"],
        total=figures["total_memory"],
        free=figures["free_memory"],
    )


def _npu() -> Any:
    """`torch.npu`. Only when it is needed: importing torch takes seconds."""
    import importlib

    missing: List[str] = []
    for package in ("torch", "torch_npu"):
        try:
            importlib.import_module(package)
        except ImportError:
            missing.append(package)
    if missing:
        raise ImportError(f"take_snapshot needs {' and '.join(missing)}")
    return importlib.import_module("torch").npu


class TakeSnapshot:
    """Context manager and decorator: snapshots `<name> Start` and `<name> End`, the latter also if an exception leaves it."""

    def __init__(self, device_mask: _Mask = None, name: str = "Memory Snapshot") -> None:
        self._mask, self._name = device_mask, name

    def __enter__(self) -> "TakeSnapshot":
        take_snapshot(self._mask, self._name + " Start")
        return self

    def __exit__(self, *_exception: Any) -> None:
        take_snapshot(self._mask, self._name + " End")

    def __call__(self, function: _Function) -> _Function:
        return wrapped(self, function)

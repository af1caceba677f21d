"""Blocks to be watched: which operator changes them. Needs a tracer that was started with --watch, see docs/watch.md."""
from __future__ import annotations

import time

from ._native import native

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Tuple

_MAX_NAME_BYTES = 64
_NO_LIMIT = 2**64 - 1
_MAX_ADDRESS = 2**64 - 1


# How often, and how long after each other, the first call looks whether the tracer is ready.
_TRIES, _NAP_S = 100, 0.01


def _has_handler() -> bool:
    """Whether this process has a handler for SIGURG, as the tracer's."""
    import signal

    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            caught = next(line for line in status if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGURG - 1) & 1)
    except (OSError, StopIteration, ValueError):
        return False


def _number(value: object, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be int, not {type(value).__name__}")
    if not least <= value <= most:
        raise TypeError(f"{what} is from {least} to {most}")
    return value


def _range(arguments: Tuple[Any, ...], keywords: "dict[str, Any]", call: str) -> Tuple[int, int]:
    """Address and bytes; takes `length` out of the keywords."""
    if len(arguments) != 1:
        raise TypeError(f"{call}() takes one tensor or address, not {len(arguments)}")
    target = arguments[0]
    if "length" in keywords:
        length = _number(keywords.pop("length"), "length", 1, _MAX_ADDRESS)
        return _number(target, "the address", 1, _MAX_ADDRESS), length
    kind = type(target)
    # Exactly this class, as msMemScope has it; without importing torch.
    if (kind.__module__, kind.__name__) != ("torch", "Tensor"):
        raise TypeError(f"{call}() takes a torch.Tensor, or an address with length=, not {kind.__name__}")
    return int(target.data_ptr()), int(target.nbytes)


class _Watcher:
    def __init__(self) -> None:
        self._told = False

    def watch(self, *arguments: Any, **keywords: Any) -> None:
        """watch(tensor, name=..., dump_nums=-1) or watch(addr, length=..., name=..., dump_nums=-1).

        The block is looked at on both sides of every operator from here on, `dump_nums` times (-1: until remove()). TypeError: not these
        arguments. ValueError: the name has more than 64 bytes.
        """
        if "name" not in keywords:
            raise TypeError("watch() needs name=")
        name = keywords.pop("name")
        if not isinstance(name, str):
            raise TypeError(f"name must be str, not {type(name).__name__}")
        if len(name.encode()) > _MAX_NAME_BYTES:
            raise ValueError(f"name has at most {_MAX_NAME_BYTES} bytes")
        looks = _number(keywords.pop("dump_nums", -1), "dump_nums", -1, 2**63 - 1)
        addr, size = _range(arguments, keywords, "watch")
        if keywords:
            raise TypeError(f"watch() has no {', '.join(keywords)}")
        if not native.listening() or size == 0 or looks == 0:
            return
        # The first call has the tracer put its handler into this process when the next one comes: until then it says the same again. A
        # tracer without --watch never does.
        for _ in range(1 if self._told else _TRIES):
            native.watch(name, addr, size, _NO_LIMIT if looks < 0 else looks)
            if self._told or _has_handler():
                break
            time.sleep(_NAP_S)
        if not self._told:
            time.sleep(5 * _NAP_S)
            native.watch(name, addr, size, _NO_LIMIT if looks < 0 else looks)
        self._told = True

    def remove(self, *arguments: Any, **keywords: Any) -> None:
        """remove(tensor) or remove(addr, length=...): the block that begins there is watched no longer. TypeError: not these arguments."""
        addr, _size = _range(arguments, keywords, "remove")
        if keywords:
            raise TypeError(f"remove() has no {', '.join(keywords)}")
        native.unwatch(addr)


watcher = _Watcher()

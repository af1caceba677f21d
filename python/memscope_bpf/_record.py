"""Ranges that a script names."""
from __future__ import annotations

from . import _check
from ._native import native

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, TypeVar

    _Function = TypeVar("_Function", bound=Callable[..., Any])


class RecordFunction(native.NamedRange):
    """Context manager and decorator: one row of the Python trace, from entry to exit, also if an exception leaves it.

    The name has at most 128 bytes (ValueError) and is a str (TypeError).
    """

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self.set_name(_check.text(name, "name"))

    def __call__(self, function: _Function) -> _Function:
        return wrapped(self, function)


def wrapped(context: Any, function: _Function) -> _Function:
    """The function, inside of the context at every call."""
    import functools

    if not callable(function):
        raise TypeError(f"a function is decorated, not {type(function).__name__}")

    @functools.wraps(function)
    def inside(*arguments: Any, **keywords: Any) -> Any:
        with context:
            return function(*arguments, **keywords)

    return inside  # type: ignore[return-value]

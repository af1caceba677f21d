"""Owner labels: what memory is for. They are seen in the owner of blocks (analysis decompose)."""
from __future__ import annotations

from . import _check
from ._native import native
from ._record import wrapped

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, List, Tuple, TypeVar

    _Function = TypeVar("_Function", bound=Callable[..., Any])

__all__ = [
    "COMPONENT", "DETAIL_1", "DETAIL_2", "FRAMEWORK", "PROCESS", "USER_DEFINED_1", "USER_DEFINED_2", "USER_DEFINED_3",
    "describe_addr", "describe_label", "describer", "undescribe_label",
]

FRAMEWORK, COMPONENT, PROCESS, DETAIL_1, DETAIL_2, USER_DEFINED_1, USER_DEFINED_2, USER_DEFINED_3 = range(8)


class describer(native.LabelRange):
    """Context manager and decorator: what this thread allocates inside of it has the label `owner`. Three can be inside of each other; a
    fourth has no effect.

    With a tensor or an address in front, the live block that begins there has it, at once. As in msMemScope the label may stand behind
    it without its name: `describer(tensor, "label")`.

    The label has at most 128 bytes (ValueError) and is a str (TypeError). NotImplementedError: what is described has no `data_ptr`.
    """

    __slots__ = ()

    def __init__(self, obj: Any = None, owner: str = "") -> None:
        self.set_label(_check.text(owner, "owner"))
        if obj is not None:
            describe_addr(_address(obj), [(owner, USER_DEFINED_1)])

    def __call__(self, function: _Function) -> _Function:
        return wrapped(self, function)


def describe_label(label: str, level: int) -> None:
    """What this thread allocates has the label at this level, until undescribe_label(); only levels 0 to 4 act. One of level 0 stands in
    place of the allocator's name (`PTA`, `CANN@APP`)."""
    native.push_label(_check.text(label, "label"), _level(level))


def undescribe_label(label: str, level: int) -> None:
    """Takes a label of describe_label() back."""
    native.pop_label(_check.text(label, "label"), _level(level))


def describe_addr(addr: int, labels: Iterable[Tuple[str, int]]) -> None:
    """Gives the live block of PyTorch's pool that begins at `addr` labels, each with its level."""
    checked: List[Tuple[str, int]] = []
    for pair in labels:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError("labels are pairs of a label and a level")
        checked.append((_check.text(pair[0], "label"), _level(pair[1])))
    native.describe_addr(_address(addr), checked)


def _level(level: object) -> int:
    if not isinstance(level, int):
        raise TypeError(f"level must be int, not {type(level).__name__}")
    if not FRAMEWORK <= level <= USER_DEFINED_3:
        raise ValueError(f"level must be {FRAMEWORK} to {USER_DEFINED_3}, not {level}")
    return level


def _address(target: Any) -> int:
    if not isinstance(target, int):
        if not hasattr(target, "data_ptr"):
            raise NotImplementedError(f"a {type(target).__name__} has no data_ptr() and cannot be described; a label is owner=")
        target = target.data_ptr()
    if not 0 <= target < 1 << 64:
        raise ValueError(f"{target} is no address")
    return int(target)

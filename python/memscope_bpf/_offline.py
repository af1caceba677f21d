"""The analyses of dumps and captures: as the program's commands of these names, with tables for answers."""
from __future__ import annotations

import os

from ._native import native

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

    from ._memscope_bpf import Found

    _Path = Union[str, os.PathLike[str]]
    # Stage, what is done, what there is to do.
    _Progress = Optional[Callable[[str, int, int], object]]

__all__ = ["Table", "ask", "compare", "decompose", "diff", "fragmentation", "inefficient", "leaks", "peaks"]

KINDS = ("early_allocation", "late_deallocation", "temporary_idleness")


class Table:
    """Rows of an analysis. Everything that reads Arrow's streams takes them over without a copy: `polars.DataFrame(table)`,
    `pyarrow.table(table)`, `pandas.DataFrame.from_arrow(table)`.
    """

    __slots__ = ("_found",)

    def __init__(self, found: "Found") -> None:
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        return f"<memscope_bpf.Table of {len(self)} rows: {', '.join(self.column_names)}>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._found.__arrow_c_stream__(requested_schema)

    @property
    def column_names(self) -> List[str]:
        """Names of the columns; sizes are in bytes, times in nanoseconds since the Unix epoch."""
        return self._found.column_names

    @property
    def document(self) -> Dict[str, Any]:
        """What the command prints with --json, compare's files left out."""
        import json

        document: Dict[str, Any] = json.loads(self._found.json)
        return document

    @property
    def report(self) -> str:
        """What the command prints without --json; compare has none."""
        return self._found.report

    @property
    def notes(self) -> List[str]:
        """What had to be repaired in the inputs, one sentence each."""
        return self._found.notes

    def to_dict(self) -> Dict[str, List[Any]]:
        """Columns as lists. What is not known is None."""
        return self._found.columns()

    def to_arrow(self) -> Any:
        """A pyarrow.Table. ImportError: pyarrow is not installed."""
        return _package("pyarrow").table(self)

    def to_polars(self) -> Any:
        """A polars.DataFrame. ImportError: polars is not installed."""
        return _package("polars").DataFrame(self)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; before pandas 3, and without pyarrow, by a copy. ImportError: pandas is not installed."""
        pandas = _package("pandas")
        if hasattr(pandas.DataFrame, "from_arrow"):
            try:
                return pandas.DataFrame.from_arrow(self)
            except ImportError:  # pandas takes it over by pyarrow
                pass
        return pandas.DataFrame(self.to_dict())


def _package(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is needed for this and cannot be imported ({error}); to_dict() needs nothing") from None


def leaks(
    *paths: _Path, mark: Optional[str] = None, start_index: int = 0, since: Optional[float] = None, until: Optional[float] = None,
    progress: _Progress = None,
) -> Table:
    """Blocks that outlive the step after their own; with `mark`, blocks that were allocated between two marks of that text and are not
    freed until the third, from number `start_index` on.

    `paths` are dumps of one run, folders with such, or one capture. Only what was between `since` and `until` counts: seconds after
    the first event, or nanoseconds as in dumps. `progress` is called several times a second with the stage, what is done of it and what
    there is to do. Ctrl-C ends it at once.

    FileNotFoundError, PermissionError, OSError: an input cannot be read. ValueError: it is not understood, the text says where.
    TypeError: an argument is of another type.
    """
    if mark is not None and not isinstance(mark, str):
        raise TypeError(f"mark must be str, not {type(mark).__name__}")
    number(start_index, "start_index", 0)
    return Table(native.leaks(_paths(paths), mark, start_index, _part(since, until), progress))


def inefficient(
    path: _Path, *, mem_size: int = 0, inefficient_type: Union[None, str, Sequence[str]] = None, idle_threshold: int = 3000,
    in_place: bool = False, since: Optional[float] = None, until: Optional[float] = None, progress: _Progress = None,
) -> Table:
    """Blocks that were held longer than they were used: of at least `mem_size` bytes, of the kinds `early_allocation`,
    `late_deallocation`, `temporary_idleness` (default: all), idle if more than `idle_threshold` operators are between two uses.

    With `in_place` the dump's own rows are marked, all of them or none. The rest as for leaks().
    """
    number(mem_size, "mem_size", 0)
    number(idle_threshold, "idle_threshold", 1)
    kinds = [kind in kinds_of(inefficient_type) for kind in KINDS]
    file, part = os.fspath(path), _part(since, until)
    return Table(native.inefficient(file, mem_size, kinds, idle_threshold, bool(in_place), part, progress))


def ask(
    question: str, *paths: _Path, rules: Optional[_Path] = None, since: Optional[float] = None, until: Optional[float] = None,
    progress: _Progress = None,
) -> Table:
    """The answer to a question of the program, by its word in --analysis: "decompose", "peaks", "oom". `rules` is a file that
    names more owners, for questions about owners. The rest as for leaks(). ValueError: there is no such question.
    """
    if not isinstance(question, str):
        raise TypeError(f"question must be str, not {type(question).__name__}")
    return Table(native.ask(question, _paths(paths), _optional(rules), _part(since, until), progress))


def decompose(
    *paths: _Path, rules: Optional[_Path] = None, since: Optional[float] = None, until: Optional[float] = None, progress: _Progress = None
) -> Table:
    """The memory of each pool by owner. `rules` is a file that names more owners. The rest as for leaks()."""
    return ask("decompose", *paths, rules=rules, since=since, until=until, progress=progress)


def peaks(
    *paths: _Path, rules: Optional[_Path] = None, since: Optional[float] = None, until: Optional[float] = None, progress: _Progress = None
) -> Table:
    """What was live when the use of each pool was highest, by owner. The rest as for decompose()."""
    return ask("peaks", *paths, rules=rules, since=since, until=until, progress=progress)


def fragmentation(
    *paths: _Path, rules: Optional[_Path] = None, since: Optional[float] = None, until: Optional[float] = None, progress: _Progress = None
) -> Table:
    """How much of each pool's memory is free, and in what pieces, over time. The rest as for decompose()."""
    return ask("fragmentation", *paths, rules=rules, since=since, until=until, progress=progress)


def diff(
    base: _Path, other: Optional[_Path] = None, *, start: Union[str, float] = "end", end: Union[str, float] = "end",
    rules: Optional[_Path] = None, progress: _Progress = None,
) -> Table:
    """What became more or less, by owner: from the moment `start` of `base` to the moment `end` of `other`, or of `base` itself. Moments
    are "end", "peak", or seconds after the first event. The rest as for decompose().
    """
    if other is None and start == end:
        raise ValueError("one input needs two moments: give start, or end, or a second input")
    other = None if other is None else os.fspath(other)
    moments = _moment(start, "start"), _moment(end, "end")
    return Table(native.difference(os.fspath(base), other, *moments, _optional(rules), progress))


def compare(
    base: _Path, other: _Path, *, level: str = "op", since: Optional[float] = None, until: Optional[float] = None, progress: _Progress = None
) -> Table:
    """Two runs, operator by operator and kernel by kernel as `level` ("op", "kernel" or "op,kernel") says: what each changed of the memory
    of its thread. The rest as for leaks().
    """
    from . import _settings

    def refused(old: str, new: str) -> None:
        raise ValueError(f"level: write {new}, not {old}")

    if not isinstance(level, str):
        raise TypeError(f"level must be str, not {type(level).__name__}")
    bits = _settings.level(level, refused)
    if not bits:
        raise ValueError("level: op, kernel, or both")
    part = _part(since, until)
    return Table(native.comparison(os.fspath(base), os.fspath(other), bool(bits & 1), bool(bits & 2), part, progress))


def _paths(paths: Sequence[_Path]) -> List[str]:
    if not paths:
        raise TypeError("at least one input is needed")
    return [os.fspath(path) for path in paths]


def _optional(path: Optional[_Path]) -> Optional[str]:
    return None if path is None else os.fspath(path)


def _part(since: Optional[float], until: Optional[float]) -> Tuple[Optional[float], Optional[float]]:
    return _time(since, "since"), _time(until, "until")


def _time(value: Optional[float], name: str) -> Optional[float]:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{name} is {value}, which is no time")
    return value


def _moment(value: Union[str, float], name: str) -> str:
    if isinstance(value, str):
        if value not in ("end", "peak"):
            raise ValueError(f"{name} is `{value}`, not end, peak, or seconds after the first event")
        return value
    return repr(float(_time(value, name) or 0.0))


def number(value: object, name: str, least: int) -> int:
    """A plain int of at least `least`, below 2**64. TypeError, ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be int, not {type(value).__name__}")
    if not least <= value < 1 << 64:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def kinds_of(wanted: Union[None, str, Sequence[str]]) -> Sequence[str]:
    """Kinds of inefficient use: all of them, one, or several. ValueError."""
    if wanted is None:
        return KINDS
    words = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(words, (list, tuple)) or not words:
        raise ValueError(f"inefficient_type is one of {', '.join(KINDS)}, or a list of them")
    for word in words:
        if word not in KINDS:
            raise ValueError(f"inefficient_type: {word!r} is not one of {', '.join(KINDS)}")
    return words

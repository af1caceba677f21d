"""Analyses of dumps by the names that msMemScope gives them. They print what they find and return None; memscope_bpf.leaks() and
memscope_bpf.inefficient() return it.
"""
from __future__ import annotations

import os
import stat
import sys

from . import _offline

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence, Union

    _Progress = Optional[Callable[[str, int, int], object]]

__all__ = [
    "InefficientAnalyzer", "InefficientConfig", "LeaksAnalyzer", "LeaksConfig", "analyze", "check_inefficient", "check_leaks",
    "get_analyzer_config", "list_analyzers",
]

_MAX_BYTES, _MAX_PATH = 8 << 30, 4096


def _input(path: object, suffixes: Sequence[str], mode: int) -> str:
    """A dump that can be read, and written if that is asked for."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"input_path must be str, not {type(path).__name__}")
    name = os.fspath(path)
    if not isinstance(name, str):
        raise TypeError("input_path must be str, not bytes")
    if not name or len(name) > _MAX_PATH:
        raise ValueError(f"input_path has 1 to {_MAX_PATH} characters, not {len(name)}")
    try:
        status = os.stat(name)
    except FileNotFoundError:
        raise FileNotFoundError(f"input_path: there is no file `{name}`") from None
    except PermissionError:
        raise PermissionError(f"input_path: no right to look at `{name}`") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"input_path: `{name}` is no path of a file ({error})") from None
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(f"input_path: `{name}` is no regular file")
    if os.path.splitext(name)[1].lower() not in suffixes:
        raise ValueError(f"input_path: `{name}` does not end with {' or '.join(suffixes)}")
    if status.st_size > _MAX_BYTES:
        raise ValueError(f"input_path: `{name}` has {status.st_size} bytes; at most {_MAX_BYTES} are read")
    for right, what in ((os.R_OK, "read"), (os.W_OK, "written")):
        if mode & right and not os.access(name, right):
            raise PermissionError(f"input_path: `{name}` cannot be {what}")
    if status.st_uid not in (0, os.geteuid()):
        print(f"[msmemscope] Warn: `{name}` belongs to another user.", file=sys.stderr)
    return name


class AnalysisConfig:
    """What all analyses are given: a file."""

    input_path: str


class BaseAnalyzer:
    """What all analyzers do."""

    def analyze(self, config: Any, progress: _Progress = None) -> None:
        """Does it; each does it in its way."""
        raise NotImplementedError(f"{type(self).__name__} has no analyze()")


class LeaksConfig(AnalysisConfig):
    """What check_leaks() is given, checked."""

    def __init__(self, input_path: str, mstx_info: str, start_index: int) -> None:
        self.input_path = _input(input_path, (".csv",), os.R_OK)
        if not isinstance(mstx_info, str):
            raise TypeError(f"mstx_info must be str, not {type(mstx_info).__name__}")
        if not mstx_info.strip():
            raise ValueError("mstx_info is empty; it is the text of the marks")
        self.mstx_info = mstx_info
        if isinstance(start_index, bool) or not isinstance(start_index, int) or not 0 <= start_index < 1 << 64:
            raise ValueError(f"start_index must be an int of at least 0, not {start_index!r}")
        self.start_index = start_index


class InefficientConfig(AnalysisConfig):
    """What check_inefficient() is given, checked."""

    def __init__(
        self, input_path: str, mem_size: int = 0, inefficient_type: Union[None, str, Sequence[str]] = None, idle_threshold: int = 3000
    ) -> None:
        self.input_path = _input(input_path, (".csv", ".db"), os.R_OK | os.W_OK)
        for value, name, least in ((mem_size, "mem_size", 0), (idle_threshold, "idle_threshold", 1)):
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 64:
                raise ValueError(f"{name} must be an int of at least {least}, not {value!r}")
        self.mem_size, self.idle_threshold = mem_size, idle_threshold
        self.inefficient_type = list(_offline.kinds_of(inefficient_type))


class LeaksAnalyzer(BaseAnalyzer):
    """Leaks between marks."""

    def analyze(self, config: LeaksConfig, progress: _Progress = None) -> None:
        """Prints the blocks that were allocated between the first two marks and are not freed until the third, by device."""
        _print(_offline.leaks(config.input_path, mark=config.mstx_info, start_index=config.start_index, progress=progress))


class InefficientAnalyzer(BaseAnalyzer):
    """Blocks held longer than they are used."""

    def analyze(self, config: InefficientConfig, progress: _Progress = None) -> None:
        """Prints them, and marks their rows in the file itself (`inefficient_type` in Attr): all of them or none."""
        table = _offline.inefficient(
            config.input_path, mem_size=config.mem_size, inefficient_type=config.inefficient_type,
            idle_threshold=config.idle_threshold, in_place=True, progress=progress)
        _print(table)
        if not table.report:
            print("Inefficient use was not judged: there are no blocks.")


def _print(table: _offline.Table) -> None:
    for note in table.notes:
        print(f"[msmemscope] Warn: {note}", file=sys.stderr)
    print(table.report, end="")


_TYPES: Dict[str, Any] = {"leaks": (LeaksAnalyzer, LeaksConfig), "inefficient": (InefficientAnalyzer, InefficientConfig)}


def list_analyzers() -> List[str]:
    """Names of the analyses."""
    return list(_TYPES)


def get_analyzer_config(analyzer_type: str) -> Dict[str, Any]:
    """Name of an analysis' configuration, and what it is given. ValueError: there is no such analysis."""
    _, config = _known(analyzer_type)
    code = config.__init__.__code__
    return {"config_class": config.__name__, "parameters": list(code.co_varnames[1:code.co_argcount])}


def analyze(analyzer_type: str, **settings: Any) -> None:
    """Does an analysis by its name. ValueError: there is no such analysis. What else is raised is as for its configuration."""
    analyzer, config = _known(analyzer_type)
    progress = settings.pop("progress", None)
    analyzer().analyze(config(**settings), progress)


def _known(analyzer_type: str) -> Any:
    if not isinstance(analyzer_type, str) or analyzer_type not in _TYPES:
        raise ValueError(f"there is no analyzer {analyzer_type!r}; there are: {', '.join(_TYPES)}")
    return _TYPES[analyzer_type]


def check_leaks(input_path: str, mstx_info: str, start_index: int, progress: _Progress = None) -> None:
    """Prints the blocks of a CSV dump that were allocated from mark number `start_index` with the text `mstx_info` to the next one, and
    not freed until the one after that.

    FileNotFoundError, PermissionError, ValueError, TypeError: an argument is no good; the text says which.
    """
    LeaksAnalyzer().analyze(LeaksConfig(input_path, mstx_info, start_index), progress)


def check_inefficient(
    input_path: str, mem_size: int = 0, inefficient_type: Union[None, str, Sequence[str]] = None, idle_threshold: int = 3000,
    progress: _Progress = None,
) -> None:
    """Prints the blocks that were held longer than they were used, and marks their rows in the file itself. As for check_leaks()."""
    InefficientAnalyzer().analyze(InefficientConfig(input_path, mem_size, inefficient_type, idle_threshold), progress)

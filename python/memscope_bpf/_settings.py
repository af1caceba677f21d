"""What the values of config() may be (contract 1.2 to 1.6), and which of them a marker reports."""
import re
from typing import Callable, Dict, Iterable, List, Optional, Tuple

_EVENTS = {"alloc": 1, "free": 2, "launch": 4, "access": 8, "block_free": 16}
_LEVELS = {"op": 1, "kernel": 2}
# Spellings of old releases.
_OLD_LEVELS = {"0": "op", "1": "kernel"}
_ALL_NPUS, _CPU = 1 << 32, 1 << 33
_ANALYSES = {"leaks": 1, "decompose": 2, "inefficient": 4, "oom": 8, "peaks": 16, "fragmentation": 32}
_NONE = 1 << 15
_DEFAULT_DEPTH, _DEFAULT_BLOCKS = 50, 10
_MAX_DEPTH, _MAX_BLOCKS, _MAX_OUTPUT_ID = 1000, 1000, (1 << 32) - 1

Deprecated = Callable[[str, str], None]


def items(text: str) -> List[str]:
    """Splits at commas, full-width ones too; empty items are passed over."""
    return [item.strip() for item in re.split("[,，]", text) if item.strip()]


def _one_of(item: str, words: Iterable[str]) -> ValueError:
    return ValueError(f"`{item}` is not one of {', '.join(words)}")


def _number(text: str, low: int, high: int) -> int:
    """A plain decimal number: no sign, no blanks, no leading zeros."""
    if not re.fullmatch("0|[1-9][0-9]{0,9}", text, re.ASCII) or not low <= int(text) <= high:
        raise ValueError(f"`{text}` is not a number from {low} to {high}")
    return int(text)


def events(text: str) -> int:
    """Bits of the wanted events; `none` clears all."""
    bits, none = 0, False
    for item in items(text):
        if item in _EVENTS:
            bits |= _EVENTS[item]
        elif item == "none":
            none = True
        elif item != "traceback":
            raise _one_of(item, [*_EVENTS, "traceback", "none"])
    return 0 if none else bits


def traceback(text: str) -> bool:
    """Whether events are wanted with a Python trace."""
    words = items(text)
    return "traceback" in words and "none" not in words


def level(text: str, deprecated: Deprecated) -> int:
    """Bits of the levels."""
    bits = 0
    for item in items(text):
        if item in _OLD_LEVELS:
            deprecated(f"level={item}", f"level={_OLD_LEVELS[item]}")
            item = _OLD_LEVELS[item]
        if item not in _LEVELS:
            raise _one_of(item, _LEVELS)
        bits |= _LEVELS[item]
    return bits


def device(text: str) -> int:
    """Bit N is NPU N; all of them and the host have bits of their own."""
    bits = 0
    for item in items(text):
        if item == "npu":
            bits |= _ALL_NPUS
        elif item == "cpu":
            bits |= _CPU
        elif item.startswith("npu:"):
            bits |= 1 << _number(item[4:], 0, 31)
        else:
            raise _one_of(item, ["npu", "npu:<0..31>", "cpu"])
    if not bits:
        raise ValueError("no device")
    return bits


def call_stack(text: str) -> int:
    """Frames and one more: of C in bits 0 to 15, of Python in bits 16 to 31; bit 32 says that they are merged."""
    native = python = mixed = 0
    for item in items(text):
        kind, colon, words = item.partition(":")
        if kind not in ("c", "python", "mixed"):
            raise _one_of(item, ["c[:depth]", "python[:depth]", "mixed[:depth]"])
        depth = 1 + (_number(words, 0, _MAX_DEPTH) if colon else _DEFAULT_DEPTH)
        if kind == "c":
            native = depth
        elif kind == "python":
            python = depth
        else:
            native, python, mixed = depth, depth, 1
    return native | python << 16 | mixed << 32


def analysis(text: str) -> int:
    """Bits of the analyses, and from bit 16 on how many blocks are named when memory is out; `none` clears all."""
    bits = blocks = 0
    for item in items(text):
        kind, colon, number = item.partition(":")
        if (kind not in _ANALYSES and kind != "none") or (colon and kind != "oom"):
            raise _one_of(item, [*_ANALYSES, "none"])
        bits |= _ANALYSES.get(kind, _NONE)
        if kind == "oom":
            blocks = _number(number, 1, _MAX_BLOCKS) if colon else _DEFAULT_BLOCKS
    return 0 if bits & _NONE else bits | blocks << 16


def _watch(text: str) -> None:
    start, comma, rest = text.partition(",")
    end, comma_behind, full = rest.partition(",")
    if not comma or (not start and not end) or (comma_behind and full not in ("", "full-content")):
        raise ValueError("watch is [start[:outid]],end[,full-content]")
    name, colon, output = start.partition(":")
    if colon:
        if not name:
            raise ValueError("watch has no start in front of the number of its output")
        _number(output, 0, _MAX_OUTPUT_ID)


def _format(text: str) -> None:
    if text not in ("csv", "db"):
        raise _one_of(text, ["csv", "db"])


def _output_path(text: str) -> None:
    if not text or "\0" in text:
        raise ValueError("output_path is no path")


# Those that the tracer's command line decides, and a script only names.
_NAMED: Dict[str, Callable[[str], object]] = {
    "call_stack": call_stack, "analysis": analysis, "watch": _watch, "format": _format, "output_path": _output_path,
}
KEYS = frozenset(_NAMED) | {"events", "level", "device"}


def check(settings: Dict[str, str], deprecated: Deprecated) -> Tuple[int, int, int]:
    """Bits of events, levels and devices; what is not set has its default. ValueError names the key."""
    key: Optional[str] = None
    try:
        for key, test in _NAMED.items():
            if key in settings:
                test(settings[key])
        key = "events"
        event_bits = events(settings.get(key, "alloc,free,launch"))
        key = "level"
        level_bits = level(settings.get(key, "op"), deprecated)
        key = "device"
        return event_bits, level_bits, device(settings.get(key, "npu"))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def named(settings: Dict[str, str]) -> Tuple[int, int, int]:
    """What checked settings ask for besides rows: bits of analyses, depths of call stacks, and which of the others are named."""
    others = [
        "events" in settings, "level" in settings, "device" in settings, "watch" in settings, settings.get("format") == "csv",
        settings.get("format") == "db", "output_path" in settings,
    ]
    bits = sum(1 << bit for bit, is_named in enumerate(others) if is_named)
    return analysis(settings.get("analysis", "")), call_stack(settings.get("call_stack", "")), bits

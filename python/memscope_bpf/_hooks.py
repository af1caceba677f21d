"""Framework hooks: labels and snapshots around functions of frameworks, as hooks.json lists them, from when their modules are imported.

A wrapped function is called as it was, and its result or exception passed on; what is ours around it never fails it.
"""
import functools
import os
import re
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ._native import native

__all__ = ["cleanup_framework_hooks", "init_framework_hooks"]

TYPES = ("decompose", "snapshot")

Labels = Sequence[Tuple[str, int]]
Version = Tuple[int, int, int]


class Switch:
    """One for each registration. Modules that import a wrapped function by name keep the wrapper: it goes quiet when this is off."""

    def __init__(self) -> None:
        self.is_on = True


class Patch:
    """What is done around one function. `place` is the function's name within its module."""

    def __init__(self, place: str, around: Callable[[Callable[..., Any]], Callable[..., Any]], switch: Switch) -> None:
        self.place, self.around, self.switch = place, around, switch


def numbers(text: str) -> Version:
    """A version as three numbers; what follows numbers is cut off: `2.14.0a0` is 2.14.0. ValueError: it begins with none."""
    found = re.match(r"\d+(\.\d+)*", text)
    if found is None:
        raise ValueError(f"`{text}` is no version")
    parts = [int(part) for part in found.group().split(".")[:3]] + [0, 0]
    return parts[0], parts[1], parts[2]


def matches(key: str, version: str) -> bool:
    """Whether a key of the table is for the version: `*`, `X+`, `A-B`, or the version itself."""
    if key == "*":
        return True
    have = numbers(version)
    if key.endswith("+"):
        return have >= numbers(key[:-1])
    first, dash, last = key.partition("-")
    if not dash:
        return have == numbers(key)
    branch = tuple(int(part) for part in last.split("."))
    return numbers(first) <= have and have[:len(branch)] <= branch


def rows_for(rows: Sequence[Dict[str, Any]], version: str, hook_type: str) -> List[Dict[str, Any]]:
    """The places of a component: those of the very version if there are any, else of all keys that match, each once."""
    rows = [row for row in rows if row["type"] == hook_type and matches(row["versions"], version)]
    exact = [row for row in rows if row["versions"] not in ("*",) and re.fullmatch(r"[\d.]+", row["versions"])]
    places: List[Dict[str, Any]] = []
    for row in exact or rows:
        places += [place for place in row["places"] if place not in places]
    return places


def _table() -> Dict[str, Any]:
    import json

    with open(os.path.join(os.path.dirname(__file__), "hooks.json"), encoding="utf-8") as file:
        frameworks: Dict[str, Any] = json.load(file)["frameworks"]
    return frameworks


# What has been done, the newest last.
_undo: List[Callable[[], None]] = []
_switches: List[Switch] = []
# Components that have hooks.
_registered: Dict[Tuple[str, str, str], None] = {}
# Decompose hooks were chosen by hand.
_by_hand = False


def init_framework_hooks(framework: str, version: str, component: str, hook_type: str) -> None:
    """Labels (`decompose`) or snapshots (`snapshot`) around the functions of a framework's component, once it is imported, or at once if it
    is already. Unknown names are printed with the known ones; nothing is raised.
    """
    global _by_hand
    table = _table()
    if hook_type not in TYPES:
        return _error(f"there is no type of hooks {hook_type!r}; there are: {', '.join(TYPES)}")
    if framework not in table:
        return _error(f"there are no hooks for framework {framework!r}; there are some for: {', '.join(table)}")
    components = table[framework]["components"]
    if component not in components:
        return _error(f"{framework} has no component {component!r}; it has: {', '.join(components)}")
    rows = components[component]
    try:
        places = rows_for(rows, version, hook_type)
    except (TypeError, ValueError):
        return _error(f"{version!r} is no version; write one like 2.6.0")
    if not places:
        keys = sorted({f"{row['versions']} ({row['type']})" for row in rows})
        return _error(f"{framework} {component} has no hooks of type {hook_type} for version {version}; there are: {', '.join(keys)}")
    if hook_type == "decompose":
        if not _by_hand:
            # What was registered by itself gives way.
            cleanup_framework_hooks()
        _by_hand = True
    _register(framework, component, hook_type, places)


def cleanup_framework_hooks() -> None:
    """All functions are as they were."""
    global _by_hand
    _by_hand = False
    _registered.clear()
    _finder.waiting.clear()
    _finder.waiting_acts.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    while _switches:
        _switches.pop().is_on = False
    while _undo:
        _undo.pop()()


def init_all() -> None:
    """The decompose hooks of every framework that is installed, for the version that is there, unless some were chosen by hand."""
    if _by_hand:
        return
    from . import _optimizer

    _when_imported("torch.optim.optimizer", _optimizer.register)
    for framework, known in _table().items():
        version = _installed(known["distribution"])
        for component, rows in known["components"].items():
            try:
                places = rows_for(rows, version, "decompose") if version else []
            except ValueError:
                continue
            if places:
                _register(framework, component, "decompose", places)


def end_all() -> None:
    """Takes the hooks of init_all() back; those that were chosen by hand stay."""
    if not _by_hand:
        cleanup_framework_hooks()


def _when_imported(name: str, act: Callable[[Any], Optional[Callable[[], None]]]) -> None:
    """Does something with a module, once it is there; what is returned undoes it."""
    if ("", name, "") in _registered:
        return
    _registered["", name, ""] = None
    there = sys.modules.get(name)
    if there is not None:
        _do(act, there)
    else:
        _finder.waiting_acts[name] = act
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)


def _do(act: Callable[[Any], Optional[Callable[[], None]]], module: Any) -> None:
    undo = act(module)
    if undo is not None:
        _undo.append(undo)


def _installed(distribution: str) -> Optional[str]:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except Exception:  # not there, or not to be understood
        return None


def _error(text: str) -> None:
    print(f"[msmemscope] Error: {text}.")


def _register(framework: str, component: str, hook_type: str, places: Sequence[Dict[str, Any]]) -> None:
    if (framework, component, hook_type) in _registered:
        return
    _registered[framework, component, hook_type] = None
    switch = Switch()
    _switches.append(switch)
    for place in places:
        for module, patch in _patches(place, hook_type, switch):
            there = sys.modules.get(module)
            if there is not None:
                _apply(there, patch)
            else:
                _finder.waiting.setdefault(module, []).append(patch)
    if _finder.waiting and _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _patches(place: Dict[str, Any], hook_type: str, switch: Switch) -> Iterator[Tuple[str, Patch]]:
    """Modules, and what is done to them for one place."""
    if "open" in place:
        window = Window([(text, level) for text, level in place["labels"]])
        for key, around in (("open", _opening(window)), ("close", _closing(window))):
            module, _, name = place[key].partition(":")
            yield module, Patch(name, around, switch)
        return
    module, _, name = place["at"].partition(":")
    if hook_type == "snapshot":
        owner, _, function = name.rpartition(".")
        around = _snapshots(f"{module}@{owner}@{function}")
    elif "after" in place:
        from . import _vllm

        around = _with_result(getattr(_vllm, place["after"]))
    else:
        around = _labels([(text, level) for text, level in place["labels"]])
    for where in (module, *place.get("also_in", ())):
        yield where, Patch(name, around, switch)


class Window:
    """Labels from one function to another, in one thread. A second begin without an end takes the place of the first; an end alone does
    nothing."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._open = threading.local()

    def open(self) -> None:
        self.close()
        push(self.labels)
        self._open.value = True

    def close(self) -> None:
        if getattr(self._open, "value", False):
            pop(self.labels)
            self._open.value = False


def push(labels: Labels) -> None:
    for text, level in labels:
        native.push_label(text, level)


def pop(labels: Labels) -> None:
    for text, level in reversed(labels):
        native.pop_label(text, level)


def _labels(labels: Labels) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*arguments: Any, **keywords: Any) -> Any:
            push(labels)
            try:
                return function(*arguments, **keywords)
            finally:
                pop(labels)

        return hooked

    return around


def _opening(window: Window) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Labels begin with the call. One that raises has begun nothing that another function would end."""
    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*arguments: Any, **keywords: Any) -> Any:
            window.open()
            try:
                return function(*arguments, **keywords)
            except BaseException:
                window.close()
                raise

        return hooked

    return around


def _closing(window: Window) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Labels end when the call has returned, also by an exception."""
    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*arguments: Any, **keywords: Any) -> Any:
            try:
                return function(*arguments, **keywords)
            finally:
                window.close()

        return hooked

    return around


def _snapshots(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def take(text: str) -> None:
        from ._snapshot import take_snapshot_here

        try:
            take_snapshot_here(text)
        except Exception as error:  # no torch_npu, no device: not the framework's business
            _once(f"no snapshot `{text}`: {error}")

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*arguments: Any, **keywords: Any) -> Any:
            take(name + "@Start")
            try:
                return function(*arguments, **keywords)
            finally:
                take(name + "@End")

        return hooked

    return around


def _with_result(act: Callable[..., None]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Something is done when the function has returned, with its result and its arguments."""
    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def hooked(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            try:
                act(result, *arguments, **keywords)
            except Exception as error:  # another framework than is known
                _once(f"blocks have no labels after {function.__qualname__}: {error!r}")
            return result

        return hooked

    return around


_said: Dict[str, None] = {}


def _once(text: str) -> None:
    if text not in _said and len(_said) < 1000:
        _said[text] = None
        print(f"[msmemscope] Warn: {text}.", file=sys.stderr)


def _apply(module: Any, patch: Patch) -> None:
    """Wraps a function of a module. A missing one is named."""
    owner = module
    *path, leaf = patch.place.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    original = getattr(owner, leaf, None)
    if not callable(original):
        _once(f"{module.__name__} has no {patch.place}, which has no hook then")
        return
    # In two rows of a table a function has two wrappers; where it was imported by name it has its own already.
    if getattr(original, "__memscope_bpf__", None) is patch.around:
        return
    hooked = patch.around(original)

    @functools.wraps(original)
    def switched(*arguments: Any, **keywords: Any) -> Any:
        return (hooked if patch.switch.is_on else original)(*arguments, **keywords)

    switched.__memscope_bpf__ = patch.around  # type: ignore[attr-defined]
    own = vars(owner).get(leaf)
    setattr(owner, leaf, type(own)(switched) if isinstance(own, (staticmethod, classmethod)) else switched)

    def undo() -> None:
        # Others may have wrapped it since: theirs calls ours, which is quiet.
        if getattr(getattr(owner, leaf, None), "__memscope_bpf__", None) is patch.around:
            if own is not None:
                setattr(owner, leaf, own)
            else:
                delattr(owner, leaf)

    _undo.append(undo)


class Finder:
    """Wraps functions when the module that has them has run. It finds nothing itself: the others do."""

    def __init__(self) -> None:
        self.waiting: Dict[str, List[Patch]] = {}
        self.waiting_acts: Dict[str, Callable[[Any], Optional[Callable[[], None]]]] = {}
        self._asking = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if (name not in self.waiting and name not in self.waiting_acts) or getattr(self._asking, "value", False):
            return None
        self._asking.value = True
        try:
            import importlib.util

            spec: Any = importlib.util.find_spec(name)
        finally:
            self._asking.value = False
        run = getattr(getattr(spec, "loader", None), "exec_module", None)
        if run is None:
            return spec

        def exec_module(module: Any) -> None:
            run(module)
            for patch in self.waiting.pop(name, ()):
                _apply(module, patch)
            act = self.waiting_acts.pop(name, None)
            if act is not None:
                _do(act, module)

        try:
            spec.loader.exec_module = exec_module
        except AttributeError:  # a loader that does not let itself be changed
            _once(f"{name} is loaded in a way that leaves no room for hooks")
        return spec


_finder = Finder()

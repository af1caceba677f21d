"""Packages that may be missing."""
from __future__ import annotations

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable, List, Optional

__all__ = ["check_packages", "import_with_optional_deps"]


def _missing(packages: Iterable[str]) -> List[str]:
    import importlib

    missing = []
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError:
            missing.append(package)
    return missing


def check_packages(packages: Iterable[str], error_msg: str = "Please check it.") -> None:
    """Prints a line for each package that cannot be imported."""
    for package in _missing(packages):
        print(f"[msmemscope]: Import {package} failed! {error_msg}")


def import_with_optional_deps(
    module_name: str, func_name: str, required_packages: Iterable[str], error_msg: Optional[str] = None,
) -> Callable[..., Any]:
    """A function of a module of this package; where packages that it needs are missing, one that raises ImportError with their names."""
    import importlib

    missing = _missing(required_packages)
    text = error_msg or f"[msmemscope]: {func_name} needs {', '.join(missing)}"
    if not missing:
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(f"{__package__}.{module_name}"), func_name)
        except ImportError as error:
            text = f"[msmemscope]: {func_name} cannot be imported: {error}"
        else:
            return function

    def refused(*_arguments: Any, **_keywords: Any) -> Any:
        raise ImportError(text)

    return refused

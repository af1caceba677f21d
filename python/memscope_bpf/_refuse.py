"""Names of msMemScope that have no counterpart."""
from __future__ import annotations

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class _Refused:
    def __init__(self, name: str, why: str) -> None:
        self.__name, self.__why = name, why

    def __call__(self, *_arguments: Any, **_keywords: Any) -> NoReturn:
        raise NotImplementedError(f"msmemscope has no {self.__name}: {self.__why}")

    def __getattr__(self, attribute: str) -> NoReturn:
        # Python itself looks for names like these, and goes on without them; copies have no names of their own yet.
        if attribute.startswith(("__", "_Refused__")):
            raise AttributeError(attribute)
        raise NotImplementedError(f"msmemscope has no {self.__name}.{attribute}: {self.__why}")

    def __repr__(self) -> str:
        return f"<{self.__name}: not in memscope-bpf>"


def refused(name: str, why: str) -> Any:
    """Stands for something that can be imported and not be used: NotImplementedError says which, and why."""
    return _Refused(name, why)

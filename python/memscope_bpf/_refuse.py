"""Names of msMemScope that have no counterpart."""
from __future__ import annotations

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def refused(name: str, why: str) -> Any:
    """Stands for something that can be imported and not be used: NotImplementedError says which, and why."""

    class Refused:
        def __call__(self, *_arguments: Any, **_keywords: Any) -> NoReturn:
            raise NotImplementedError(f"msmemscope has no {name}: {why}")

        def __getattr__(self, attribute: str) -> NoReturn:
            # Python itself looks for names like these, and goes on without them.
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            raise NotImplementedError(f"msmemscope has no {name}.{attribute}: {why}")

        def __repr__(self) -> str:
            return f"<{name}: not in memscope-bpf>"

    return Refused()

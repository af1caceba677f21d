"""Numbers out of cells."""
from __future__ import annotations

# True to checkers. `typing` is not needed at run time, and its import costs more than the rest of the package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

__all__ = ["safe_convert_int"]


def safe_convert_int(input_value: Any, context: str = "") -> Optional[int]:
    """The value as an int. What is none gives None and a line on stdout, with `context` (where it stood) if there is one."""
    try:
        return int(input_value)
    except (TypeError, ValueError):
        where = f" ({context})" if context else ""
        print(f"WARNING: Cannot convert {input_value!r} to int{where}; the row is passed over.")
        return None

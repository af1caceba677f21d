"""Checks of arguments that several calls share."""

MAX_BYTES = 128


def text(value: object, what: str) -> str:
    """A text of at most 128 bytes in UTF-8. TypeError: no str. ValueError: too long, or not to be encoded."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be str, not {type(value).__name__}")
    if len(value.encode()) > MAX_BYTES:
        raise ValueError(f"{what} has at most {MAX_BYTES} bytes")
    return value

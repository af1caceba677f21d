"""Asks the daemon to have this process traced. Imported when there is a socket to ask at; see docs/daemon.md.

One line of JSON goes there, one comes back. The daemon gets the asking process from the kernel, not from this line.
"""
import json
import socket
import time
from typing import Dict, NamedTuple

_VERSION = 1
# As long as a tracer with probes on all operators of torch may take to come on a busy machine.
_PATIENCE_S = 20.0
_MAX_REPLY_BYTES = 4096
_MAX_TEXT = 400


class Answer(NamedTuple):
    """`status` is `ready` (probes were placed), `traced` (they were there), `refused`, `silent` (no answer in time), or `absent`: no daemon listens
    at the socket.
    """

    status: str
    text: str


def ask(path: str, settings: Dict[str, str]) -> Answer:
    """Waits for the answer, at most 20 seconds; raises nothing but what a signal handler does."""
    deadline = time.monotonic() + _PATIENCE_S
    request = json.dumps({"version": _VERSION, "settings": settings}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE_S)
            try:
                connection.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                return Answer("absent", "")
            try:
                connection.sendall(request)
            except (BrokenPipeError, ConnectionResetError):
                pass  # It has refused without reading all, and says why.
            return _understood(_line(connection, deadline))
    except socket.timeout:
        return Answer("silent", f"it did not answer within {_PATIENCE_S:g} s")
    except (OSError, ValueError) as error:
        # A path that is too long for a socket is an OSError, one with a NUL a ValueError.
        return Answer("refused", _printable(f"it cannot be asked: {error}"))


def _line(connection: socket.socket, deadline: float) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_REPLY_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise socket.timeout
        connection.settimeout(left_s)
        part = connection.recv(_MAX_REPLY_BYTES - len(line))
        if not part:
            break
        line += part
    return line


def _understood(line: bytes) -> Answer:
    """What the answer says, whoever wrote it."""
    try:
        reply = json.loads(line)
        version, status, text = reply["version"], reply["status"], reply["text"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return Answer("refused", "its answer is not understood")
    if version != _VERSION or status not in ("ready", "traced", "refused") or not isinstance(text, str):
        return Answer("refused", "its answer is not understood")
    return Answer(status, _printable(text))


def _printable(text: str) -> str:
    """One line that does nothing to a terminal."""
    text = "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in text[:_MAX_TEXT])
    return text.encode(errors="replace").decode()

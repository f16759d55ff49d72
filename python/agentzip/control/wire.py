"""
What client and server of the control socket have in common: lines, errors, parameters.

One JSON object per line, an answer for each request, in order:

    {"method": "page_out", "params": {"pid": 4711}}
    {"result": {"pid": 4711, "pages_moved": 51200, ...}}
    {"error": {"type": "NotAttached", "message": "...", "hint": "...", "exit_code": 13}}
"""

import json
from collections.abc import Mapping
from typing import Any

from agentzip import errors

__all__ = [
    "REQUEST_BYTES_MAX",
    "SOCKET_NAME",
    "JsonObject",
    "error_answer",
    "error_of",
    "flag",
    "integer",
    "line_of",
    "number",
    "ranges",
    "text",
]

SOCKET_NAME = "agentzip.sock"
"""Name of the socket within the run directory."""

REQUEST_BYTES_MAX = 64 * 1024
"""A request is a name or a pid and perhaps a few ranges; a longer line ends the connection."""

JsonObject = dict[str, Any]


def integer(params: JsonObject, name: str) -> int:
    """A whole number above zero; raises InvalidSetting that names it."""
    value = params.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:
        raise errors.InvalidSetting(
            f"{name} is not a positive number: {value!r}", f"give {name} as a whole number"
        )
    return value


def ranges(params: JsonObject, name: str) -> list[tuple[int, int]] | None:
    """Pairs of addresses, or None if they are not given; raises InvalidSetting that names them."""
    value = params.get(name)
    if value is None:
        return None
    pairs = [tuple(pair) for pair in value]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(edge, int) for edge in pair):
            raise errors.InvalidSetting(f"{name} is not a list of (start, end) pairs: {pair!r}")
    return [(start, end) for start, end in pairs]


def number(params: JsonObject, name: str) -> float | None:
    """A number, or None if it is not given; raises InvalidSetting that names it."""
    value = params.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise errors.InvalidSetting(
            f"{name} is not a number: {value!r}", f"give {name} as a number"
        )
    return float(value)


def text(params: JsonObject, name: str) -> str:
    """Words that can be printed; raises InvalidSetting that names them."""
    value = params.get(name)
    if not isinstance(value, str) or not value or not value.isprintable():
        raise errors.InvalidSetting(
            f"{name} is not a text: {value!r}", f"give {name} as printable text"
        )
    return value


def flag(params: JsonObject, name: str) -> bool:
    """True or false; raises InvalidSetting that names it."""
    value = params.get(name)
    if not isinstance(value, bool):
        raise errors.InvalidSetting(
            f"{name} is neither true nor false: {value!r}", f"give {name} as true or false"
        )
    return value


def line_of(value: JsonObject) -> bytes:
    """A request or an answer as it goes over the socket."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def error_answer(error: errors.AgentZipError) -> JsonObject:
    """An error as it goes over the socket."""
    return {
        "error": {
            "type": type(error).__name__,
            "message": str(error),
            "hint": error.hint,
            "exit_code": error.exit_code,
        }
    }


def error_of(answer: Mapping[str, Any]) -> errors.AgentZipError:
    """The exception that an error answer names; an unknown name is an internal error."""
    name = str(answer.get("type"))
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    if kind is None:
        return errors.InternalError(f"{name}: {answer.get('message')}")
    error: errors.AgentZipError = kind(str(answer.get("message")), str(answer.get("hint", "")))
    return error

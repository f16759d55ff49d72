"""
What goes in and out over HTTP as plain values, and errors as problem documents (RFC 9457).
"""

import json
from dataclasses import dataclass, field
from http import HTTPStatus

from agentzip import errors

__all__ = ["Answer", "Problem", "Request", "answer_json", "problem", "problem_of", "status_of"]

_STATUS = {
    errors.InvalidSetting: HTTPStatus.BAD_REQUEST,
    errors.NotPermitted: HTTPStatus.FORBIDDEN,
    errors.NoSuchSandbox: HTTPStatus.NOT_FOUND,
    errors.NoSuchScope: HTTPStatus.NOT_FOUND,
    errors.NoSuchProcess: HTTPStatus.NOT_FOUND,
    errors.NotAttached: HTTPStatus.CONFLICT,
    errors.AlreadyAttached: HTTPStatus.CONFLICT,
    errors.AlreadyTraced: HTTPStatus.CONFLICT,
    errors.PidReused: HTTPStatus.CONFLICT,
    errors.TargetGone: HTTPStatus.CONFLICT,
    errors.TargetBusy: HTTPStatus.SERVICE_UNAVAILABLE,
    errors.Unsupported: HTTPStatus.NOT_IMPLEMENTED,
    errors.NotEnoughMemory: HTTPStatus.INSUFFICIENT_STORAGE,
}
"""What a client can do something about; any other error is ours: 500."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, complete."""

    method: str
    path: str
    """As it was sent, percent-encoded."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, ready to be sent."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What went wrong (RFC 9457)."""

    type: str
    """`urn:agentzip:` and the name of the error, or `about:blank` for one of HTTP itself."""
    title: str
    """The kind of error in a sentence."""
    status: int
    detail: str
    """This very error in a sentence."""
    hint: str
    """What to do about it; may be empty."""


def answer_json(value: object, status: int = HTTPStatus.OK) -> Answer:
    """An answer that holds a value as JSON; raises ValueError for what JSON cannot say (NaN)."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Answer(status, text.encode() + b"\n")


def problem(
    status: int, detail: str, hint: str = "", headers: dict[str, str] | None = None
) -> Answer:
    """An error of HTTP itself: no such path, too many requests."""
    return _document("about:blank", HTTPStatus(status).phrase, status, detail, hint, headers)


def problem_of(error: errors.AgentZipError) -> Answer:
    """An error of ours, with the status that fits."""
    kind = type(error)
    title = (kind.__doc__ or kind.__name__).strip().splitlines()[0].rstrip(".")
    return _document(
        f"urn:agentzip:{kind.__name__}", title, status_of(kind), str(error), error.hint
    )


def status_of(kind: type[errors.AgentZipError]) -> int:
    """The status that an error is answered with."""
    return _STATUS.get(kind, HTTPStatus.INTERNAL_SERVER_ERROR)


def _document(
    kind: str,
    title: str,
    status: int,
    detail: str,
    hint: str,
    headers: dict[str, str] | None = None,
) -> Answer:
    text = json.dumps(
        {"type": kind, "title": title, "status": int(status), "detail": detail, "hint": hint}
    )
    return Answer(status, text.encode() + b"\n", "application/problem+json", headers or {})

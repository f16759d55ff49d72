"""
Routes: one table that both answers requests and is documented, so the two cannot differ.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from agentzip.errors import AgentZipError, InvalidSetting
from agentzip.sandboxes import Fleet
from agentzip.web import schema
from agentzip.web.answers import Answer, Request, answer_json, problem

__all__ = ["Call", "Route", "dispatch", "encode_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as a handler sees it."""

    fleet: Fleet
    names: Mapping[str, str]
    """What stands in the path for `{name}` and its like."""
    body: Any
    """The dataclass that the route names; None if it takes no body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One thing that can be asked."""

    method: str
    path: str
    """Segments in braces stand for one percent-encoded name each."""
    summary: str
    handler: Callable[[Call], Any]
    returns: Any
    """Type of the answer; None for one without a body."""
    body: type | None = None
    raises: tuple[type[AgentZipError], ...] = ()

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        """The names in a path, decoded; None if it is another route's."""
        own = self.path.split("/")
        if len(own) != len(segments):
            return None
        names = {}
        for mine, theirs in zip(own, segments, strict=True):
            if mine.startswith("{"):
                names[mine[1:-1]] = _decode(theirs)
            elif mine != theirs:
                return None
        return names


def dispatch(
    routes: Sequence[Route], fleet: Fleet, request: Request, given: Mapping[str, str] | None = None
) -> Answer:
    """
    Answer a request by the table.

    Args:
        routes: The table.
        fleet: Whom the handlers ask.
        request: What was asked.
        given: Names that are known without the path.

    Raises:
        AgentZipError: what the request is refused with.
    """
    path, _, query = request.path.partition("?")
    segments = path.split("/")
    found = [(route, names) for route in routes if (names := route.match(segments)) is not None]
    if not found:
        known = ", ".join(dict.fromkeys(route.path for route in routes))
        return problem(
            HTTPStatus.NOT_FOUND, f"path is not known: {path[:200]}", f"there is {known}"
        )
    allowed = sorted({route.method for route, _ in found})
    for route, names in found:
        if route.method == request.method:
            if query:
                raise InvalidSetting(f"a query is not known here: {query[:200]!r}", "leave it out")
            body = None if route.body is None else schema.read(route.body, _json(request.body))
            call = Call(fleet=fleet, names={**names, **(given or {})}, body=body)
            return _answer(route.handler(call))
    return problem(
        HTTPStatus.METHOD_NOT_ALLOWED,
        f"{request.method} is not known for {path[:200]}",
        f"use {' or '.join(allowed)}",
        {"Allow": ", ".join(allowed)},
    )


def encode_name(name: str) -> str:
    """A name as it stands in a path, slashes encoded."""
    return quote(name, safe="")


def _decode(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"name is not UTF-8: {segment[:200]}") from error


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidSetting("the body is not JSON", "send a JSON object") from error


def _answer(value: Any) -> Answer:
    if value is None:
        return Answer(HTTPStatus.NO_CONTENT)
    if isinstance(value, dict):
        return answer_json(value)
    if isinstance(value, list):
        return answer_json([asdict(item) for item in value])
    return answer_json(asdict(value))

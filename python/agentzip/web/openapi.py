"""
The OpenAPI 3.1 document of a table of routes.
"""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from agentzip.web import schema
from agentzip.web.answers import Problem, status_of
from agentzip.web.routes import Route

__all__ = ["document"]

API_VERSION = "1.0.0"
"""Of the interface, not of the program: the second number for additions, the first for the rest."""

Json = dict[str, Any]


def document(routes: Sequence[Route], title: str, description: str) -> Json:
    """Describe every route, with the schemas of what goes in and out."""
    components: dict[str, Json] = {}
    problems = schema.schema_of(Problem, components)
    paths: dict[str, Json] = {}
    for route in routes:
        operation = _operation(route, components, problems)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": API_VERSION, "description": description},
        "servers": [{"url": "http://localhost", "description": "any host: it is a Unix socket"}],
        "paths": paths,
        "components": {"schemas": dict(sorted(components.items()))},
    }


def _operation(route: Route, components: dict[str, Json], problems: Json) -> Json:
    operation: Json = {
        "operationId": route.handler.__name__.strip("_"),
        "summary": route.summary,
        "responses": {},
    }
    names = re.findall(r"{(\w+)}", route.path)
    if names:
        operation["parameters"] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": "percent-encoded, `/` as `%2F`",
                "schema": {"type": "string"},
            }
            for name in names
        ]
    if route.body is not None:
        body = schema.schema_of(route.body, components)
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    if route.returns is None:
        operation["responses"]["204"] = {"description": "Done."}
    else:
        returns = {"type": "object"}
        if route.returns is not dict:
            returns = schema.schema_of(route.returns, components)
        operation["responses"]["200"] = {
            "description": "Done.",
            "content": {"application/json": {"schema": returns}},
        }
    for status, text in _refusals(route).items():
        operation["responses"][status] = {
            "description": text,
            "content": {"application/problem+json": {"schema": problems}},
        }
    return operation


def _refusals(route: Route) -> dict[str, str]:
    """What a route may be refused with, by status; `default` for what any request may meet."""
    texts: dict[int, list[str]] = {}
    for kind in route.raises:
        texts.setdefault(int(status_of(kind)), []).append((kind.__doc__ or "").strip())
    told = {str(status): " ".join(lines) for status, lines in sorted(texts.items())}
    return {**told, "default": f"Any other problem, like {HTTPStatus.FORBIDDEN.phrase}."}

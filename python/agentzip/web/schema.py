"""
Dataclasses as the one description of JSON: read a request by it, and document it as JSON Schema.

Only what our values are made of: text, numbers, truth values, lists, optional values and other
dataclasses.
"""

import ast
import dataclasses
import inspect
import math
import types
import typing
from typing import Any, TypeVar

from agentzip.errors import InvalidSetting

__all__ = ["field_docs", "read", "schema_of"]

T = TypeVar("T")

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}

Schema = dict[str, Any]


def read(kind: type[T], value: object) -> T:
    """
    Make a dataclass from a JSON object.

    Raises:
        InvalidSetting: a field is missing, not known, or not of its type; the message names it.
    """
    if not isinstance(value, dict):
        raise InvalidSetting("the body is not a JSON object", f"send {_example(kind)}")
    found = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    types_ = typing.get_type_hints(kind)
    for name in value:
        if name not in found:
            raise InvalidSetting(f"{name} is not known", f"use {', '.join(found)}")
    for name, field in found.items():
        if name not in value:
            if field.default is dataclasses.MISSING:
                raise InvalidSetting(f"{name} is missing", f"send {_example(kind)}")
        elif not any(_is(value[name], option) for option in _options(types_[name])):
            names = " or ".join(_NAMES[option] for option in _options(types_[name]))
            raise InvalidSetting(f"{name} is not a {names}: {value[name]!r:.80}")
    return kind(**value)


def schema_of(kind: Any, components: dict[str, Schema]) -> Schema:
    """
    JSON Schema of a type.

    Args:
        kind: A type as an annotation has it.
        components: Where dataclasses are described, by name; this one's are added.
    """
    if dataclasses.is_dataclass(kind):
        name = typing.cast("type", kind).__name__
        if name not in components:
            components[name] = {}  # Holds the place while the fields are described.
            components[name] = _object(kind, components)
        return {"$ref": f"#/components/schemas/{name}"}
    if typing.get_origin(kind) is list:
        return {"type": "array", "items": schema_of(typing.get_args(kind)[0], components)}
    options = _options(kind)
    if len(options) > 1:
        return {"type": [_NAMES[option] for option in options]}
    return {"type": _NAMES[options[0]]}


def field_docs(kind: Any) -> dict[str, str]:
    """The texts that stand below the fields of a dataclass, by field."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for node, following in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[node.target.id] = inspect.cleandoc(str(following.value.value))
    return docs


def _object(kind: Any, components: dict[str, Schema]) -> Schema:
    docs = field_docs(kind)
    annotations = typing.get_type_hints(kind)
    properties = {}
    for field in dataclasses.fields(kind):
        schema = schema_of(annotations[field.name], components) | dict(field.metadata)
        if field.name in docs:
            schema["description"] = docs[field.name]
        properties[field.name] = schema
    return {
        "type": "object",
        "description": (inspect.getdoc(kind) or "").splitlines()[0],
        "properties": properties,
        "required": [
            field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING
        ],
    }


def _options(kind: Any) -> tuple[type, ...]:
    """The plain types that a value may have."""
    if isinstance(kind, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _is(value: object, kind: type) -> bool:
    if kind is float:
        # NaN and infinity are no JSON, although Python's reader takes them.
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(typing.cast("float", value))
    return type(value) is kind


def _example(kind: Any) -> str:
    return "{" + ", ".join(f'"{field.name}": ...' for field in dataclasses.fields(kind)) + "}"

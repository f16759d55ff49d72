"""
YAML text to plain values, each with the line that it stands on.

Only what a configuration needs: mappings, lists and plain values as in YAML 1.2, so `yes` and `no`
are words and `12:30` is no number.  Anchors, tags, several documents and a key given twice are
refused; with the limits on size and depth no text can make this slow or crash it.  Of PyYAML only
the parser is used: its loaders accept all of the above, the later of two equal keys included.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from agentzip.errors import InvalidSetting

__all__ = ["Document", "Value", "parse"]

Value = dict[str, "Value"] | list["Value"] | str | int | float | bool | None

_CHARACTERS_MAX = 256 * 1024
"""Longest text; a real file has some KiB, and PyYAML takes about a second for this much."""

_DEPTH_MAX = 8
"""Deepest nesting; the keys need four."""

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_FLOAT = re.compile(r"[-+]?[0-9]{1,18}\.[0-9]{0,18}(e[-+]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Document:
    """Plain values and where they stand."""

    values: dict[str, Value]
    lines: dict[str, int] = field(default_factory=dict)
    """Dotted key, like `pool.max_size` or `scopes.0.cgroup`, to its line."""


def parse(text: str, name: str) -> Document:
    """
    Read one document.

    Args:
        text: The text; an empty one is a configuration of defaults.
        name: What to call it in messages.

    Raises:
        InvalidSetting: it is no YAML, or uses something that a configuration does not need.
    """
    if len(text) > _CHARACTERS_MAX:
        raise InvalidSetting(f"{name} is too long for a configuration: {len(text)} characters")
    try:
        return _Builder(name).build(yaml.parse(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, OverflowError, IndexError) as error:
        if isinstance(error, InvalidSetting):
            raise
        told = " ".join(str(error).split())
        raise InvalidSetting(
            f"{name} is no YAML: {told}", "check indentation and quotes at that line"
        ) from error


class _Builder:
    """Builds values from parser events, by recursion that is bounded by the depth."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: dict[str, int] = {}

    def build(self, events: Iterator[Any]) -> Document:
        values: Value = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refuse(event, "a second document")
                values = self._value(next(events), events, "", 0)
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise InvalidSetting(
                f"{self._name} holds no keys: {type(values).__name__}",
                "write sections like `pool:` with their keys indented below",
            )
        return Document(values, self._lines)

    def _value(self, event: Any, events: Iterator[Any], path: str, depth: int) -> Value:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refuse(event, "an anchor or alias")
        if event.tag is not None and event.tag != "!":
            raise self._refuse(event, "a tag")
        if depth > _DEPTH_MAX:
            raise self._refuse(event, "deeper nesting than any key has")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, path, depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, path, depth)
        return _scalar(event)

    def _mapping(self, events: Iterator[Any], path: str, depth: int) -> Value:
        values: dict[str, Value] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._refuse(event, "a key that is no word")
            key = event.value
            below = f"{path}.{key}" if path else key
            line = _line(event)
            if key in values:
                raise InvalidSetting(
                    f"{self._name}:{line}: key is given twice: {below}",
                    f"keep one; the other is in line {self._lines[below]}",
                )
            self._lines[below] = line
            values[key] = self._value(next(events), events, below, depth + 1)
        return values

    def _sequence(self, events: Iterator[Any], path: str, depth: int) -> Value:
        values: list[Value] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            below = f"{path}.{len(values)}"
            self._lines[below] = _line(event)
            values.append(self._value(event, events, below, depth + 1))
        return values

    def _refuse(self, event: Any, what: str) -> InvalidSetting:
        return InvalidSetting(
            f"{self._name}:{_line(event)}: a configuration cannot hold {what}",
            "write plain keys and values",
        )


def _line(event: Any) -> int:
    """Line of an event, as editors count."""
    return int(event.start_mark.line) + 1


def _scalar(event: Any) -> Value:
    text: str = event.value
    # Quoted and block texts are texts, whatever they look like.
    if event.style is not None or event.tag == "!":
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text

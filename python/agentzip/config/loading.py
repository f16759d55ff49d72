"""
File and options together, and which of them each value comes from.

Everything is checked before anything is returned: a configuration with one wrong value is no
configuration, so a bad reload can change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agentzip import model
from agentzip.config import paths
from agentzip.config.document import Document, parse
from agentzip.config.keys import Config
from agentzip.errors import InvalidSetting
from agentzip.policy import tiers

__all__ = [
    "DEFAULT_PATH",
    "Effective",
    "Problem",
    "load",
    "load_file",
    "problems_of",
    "to_background",
    "to_settings",
]

DEFAULT_PATH = Path("/etc/agentzip/config.yaml")
"""Read when no other file is named; a missing one means defaults."""

_VALUE_CHARACTERS_MAX = 80
"""Longest value shown in a message."""

_PLAIN = {
    "extra_forbidden": "key is not known",
    "missing": "key is missing",
    "model_type": "is no section",
    "list_type": "is no list",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a configuration."""

    key: str
    value: str
    """As it was read, shortened."""
    line: int
    """Line in the file; 0 if it is not from there."""
    problem: str
    fix: str


@dataclass(frozen=True, slots=True)
class Effective:
    """A configuration that holds, and where it comes from."""

    config: Config
    sources: dict[str, str]
    """Dotted key of each value to `default`, `FILE:LINE` or the option's name."""

    def rows(self) -> list[tuple[str, object, str]]:
        """Key, value and source of every value, in the order of the keys."""
        values = self.config.model_dump(mode="json")
        values["compression"]["level"] = self.config.compression.effective_level
        return [(key, value, self.sources.get(key, "default")) for key, value in _flat(values)]


def load(
    text: str, name: str = "configuration", options: Mapping[str, tuple[str, Any]] | None = None
) -> Effective:
    """
    Check a configuration.

    Args:
        text: YAML.
        name: What to call it in messages and sources.
        options: Dotted key to (name of the option, value) for what the command line says; it wins.

    Raises:
        InvalidSetting: something is wrong; the message names every key with its value, and the
            hint every fix.
    """
    found, effective = _check(parse(text, name), name, options or {})
    if found or effective is None:
        raise _refusal(found, name)
    return effective


def problems_of(text: str, name: str = "configuration", on_host: bool = False) -> list[Problem]:
    """
    Everything that is wrong in a configuration whose YAML can be read, in the file's order.

    Args:
        text: YAML.
        name: What to call it in messages.
        on_host: Look at the paths that it names, too.
    """
    document = parse(text, name)
    found, effective = _check(document, name, {})
    if on_host and effective is not None:
        found = _unusable(effective.config, document.lines)
    return sorted(found, key=lambda problem: problem.line)


def load_file(
    path: Path | None = None, options: Mapping[str, tuple[str, Any]] | None = None
) -> Effective:
    """
    Read and check a file.

    Args:
        path: The file; None means the default one, which need not exist.
        options: As in `load`.

    Raises:
        InvalidSetting: it cannot be read, something in it is wrong, or a path that it names cannot
            be used on this host.
    """
    chosen = path or DEFAULT_PATH
    try:
        text = chosen.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"configuration is not UTF-8: {chosen}") from error
    except FileNotFoundError as error:
        if path is None:
            return load("", str(chosen), options)
        raise InvalidSetting(
            f"configuration is not found: {chosen}", "give the path of a file"
        ) from error
    except (OSError, ValueError) as error:
        raise InvalidSetting(
            f"configuration cannot be read: {chosen}: {error}", "give a file that may be read"
        ) from error
    effective = load(text, str(chosen), options)
    found = _unusable(effective.config, parse(text, str(chosen)).lines)
    if found:
        raise _refusal(found, str(chosen))
    return effective


def to_settings(config: Config, run_dir: Path) -> model.Settings:
    """
    What an engine is started with.

    Raises:
        InvalidSetting: the engine cannot do that.
    """
    # One codec with levels: 0 is the fast search, the others the thorough one.
    algorithm = config.compression.algorithm
    path = config.pool.swap_out_path
    return model.Settings(
        run_dir=run_dir,
        pool_bytes_max=config.pool.max_size,
        algorithm="lz4" if algorithm == "lz4hc" else algorithm,
        level=config.compression.effective_level,
        disk_path=None if path is None else Path(path),
        disk_bytes_max=0 if path is None else config.pool.max_size,
    )


def to_background(config: Config) -> tiers.Background:
    """
    How the pool is looked after.
    """
    chosen = config.compression.dictionary
    return tiers.Background(
        rules=tiers.Rules(
            cold_after_s=config.policy.cold_grace_period,
            reclaim_threshold=config.pool.reclaim_threshold / 100,
            defrag=config.pool.defrag,
        ),
        dictionary=tuple(chosen) if isinstance(chosen, list) else chosen,
    )


def _check(
    document: Document, name: str, options: Mapping[str, tuple[str, Any]]
) -> tuple[list[Problem], Effective | None]:
    values: dict[str, Any] = dict(document.values)
    # `pool:` with nothing below it is a section of defaults.
    for section in ("compression", "pool", "policy", "metrics", "hints"):
        if section in values and values[section] is None:
            values[section] = {}
    if "scopes" in values and values["scopes"] is None:
        values["scopes"] = []
    for key, (_, value) in options.items():
        section, _, last = key.partition(".")
        below = values.get(section, {})
        # A section that is no mapping is a problem of its own, reported below.
        if isinstance(below, dict):
            values[section] = {**below, last: value}
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        return [_problem(item, document.lines, options) for item in error.errors()], None
    sources = {
        key: options[key][0] if key in options else f"{name}:{line}"
        for key in (*document.lines, *options)
        for line in (document.lines.get(key, 0),)
    }
    return [], Effective(config, sources)


def _unusable(config: Config, lines: Mapping[str, int]) -> list[Problem]:
    """What is wrong with the paths on this host."""
    return [
        Problem(key, _shown(path), _line(key, lines), problem, fix)
        for key, path, problem, fix in paths.unusable(config)
    ]


def _refusal(found: list[Problem], name: str) -> InvalidSetting:
    return InvalidSetting(
        "\n".join(_sentence(problem, name) for problem in found),
        "\n".join(dict.fromkeys(problem.fix for problem in found)),
    )


def _problem(
    item: Any, lines: Mapping[str, int], options: Mapping[str, tuple[str, Any]]
) -> Problem:
    context = item.get("ctx", {})
    unknown = item["type"] == "extra_forbidden"
    places = [str(part) for part in item["loc"] if unknown or not _is_branch(part)]
    value = item["input"]
    if context.get("key"):
        places.append(context["key"])
        value = _below(value, context["key"], context["value"])
    key = ".".join(part if part.isprintable() else ascii(part) for part in places)
    problem = context.get("problem") or _PLAIN.get(item["type"]) or item["msg"]
    line = 0 if key in options else _line(key, lines)
    return Problem(key, _shown(value), line, problem, context.get("fix") or _fix(item, places))


def _is_branch(part: object) -> bool:
    """Whether a place is not a key but the name of an alternative, as pydantic adds it."""
    return isinstance(part, str) and ("[" in part or part in {"int", "str", "none"})


def _below(value: Any, path: str, default: object) -> Any:
    """What the file says at a key below a section; the default if it does not say it."""
    for part in path.split("."):
        if isinstance(value, dict):
            value = value.get(part, default)
        elif isinstance(value, list):
            value = value[int(part)]
    return value


def _fix(item: Any, places: list[str]) -> str:
    if item["type"] == "extra_forbidden":
        known = sorted(_keys_of(places[:-1]))
        return f"keys {'here' if places[:-1] else 'at the top'} are {', '.join(known)}"
    if item["type"] == "missing":
        return f"add {places[-1]}"
    if item["type"] == "list_type":
        return "write a list, each entry behind a dash"
    return "write its keys indented below it"


def _keys_of(places: list[str]) -> list[str]:
    kind: type[BaseModel] = Config
    for part in places:
        if part.isdigit():
            continue
        annotation = kind.model_fields[part].annotation
        arguments = getattr(annotation, "__args__", ())
        candidate = arguments[0] if arguments else annotation
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            kind = candidate
    return list(kind.model_fields)


def _line(key: str, lines: Mapping[str, int]) -> int:
    """Line of the key, or of the nearest one above it."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return lines.get(key, 0)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[: _VALUE_CHARACTERS_MAX - 3] + "..."


def _sentence(problem: Problem, name: str) -> str:
    place = f"{name}:{problem.line}: " if problem.line else ""
    return f"{place}{problem.key} {problem.problem}: {problem.value}"


def _flat(value: object, path: str = "") -> list[tuple[str, object]]:
    """Dotted key and value of every leaf; lists of plain values are leaves."""
    if isinstance(value, dict) and value:
        pairs = [(str(key), below) for key, below in value.items()]
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        pairs = [(str(position), below) for position, below in enumerate(value)]
    else:
        return [(path, value)]
    return [
        found for key, below in pairs for found in _flat(below, f"{path}.{key}" if path else key)
    ]

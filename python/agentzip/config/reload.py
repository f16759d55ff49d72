"""
A changed configuration while the daemon runs.

A file with anything wrong in it changes nothing.  Of a good one, what an engine is started with
holds only for the next start: it keeps its running value, and is named each time until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from agentzip.config.loading import Effective, load_file

__all__ = ["Reload", "reload"]

S = TypeVar("S", bound=BaseModel)

_AT_START = (
    "compression.algorithm",
    "compression.level",
    "compression.dictionary",
    "pool.max_size",
    "pool.swap_out_path",
    "policy.file_readahead",
    "metrics.listen",
    "hints.sandbox_socket",
    "state_dir",
)
"""Keys that are read once: the engine, the shipped dictionaries, open files and sockets."""


@dataclass(frozen=True, slots=True)
class Reload:
    """What a good file changes."""

    effective: Effective
    """What holds from now on."""
    changed: list[str]
    """Keys that hold from now on."""
    waiting: list[str]
    """Keys that differ in the file, and hold after the next start."""


def reload(
    path: Path | None,
    current: Effective,
    options: Mapping[str, tuple[str, Any]] | None = None,
) -> Reload:
    """
    Read the file again.

    Args:
        path: The file; None means the default one.
        current: What holds now.
        options: What the command line said at the start, as in `load`.

    Raises:
        InvalidSetting: the file cannot be read or something in it is wrong; what held still holds.
    """
    fresh = load_file(path, options)
    waiting = [key for key in _AT_START if _at(fresh.config, key) != _at(current.config, key)]
    config, sources = fresh.config, dict(fresh.sources)
    for key in waiting:
        config = _with(config, key, _at(current.config, key))
        sources[key] = current.sources.get(key, "default")
    effective = Effective(config, sources)
    before = {key: value for key, value, _ in current.rows()}
    after = {key: value for key, value, _ in effective.rows()}
    changed = [key for key in {**before, **after} if before.get(key, _at) != after.get(key, _at)]
    return Reload(effective, changed, waiting)


def _at(section: BaseModel, key: str) -> Any:
    value: Any = section
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _with(section: S, key: str, value: Any) -> S:
    """A section with one value below it changed."""
    name, _, below = key.partition(".")
    inner = _with(getattr(section, name), below, value) if below else value
    return section.model_copy(update={name: inner})

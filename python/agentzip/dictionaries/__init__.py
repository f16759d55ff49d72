"""
Dictionaries as files: the prebuilt ones of this package, and those that `agentzip dict train` made.

A dictionary is `NAME.zdict`, in the format of zstd, with its facts beside it in `NAME.json`: the
recipe that made it, the day, its size and SHA-256, what it gained on pages that it was not made
from, and where those came from.  A file whose bytes are not those of its facts is not used.
"""

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from agentzip.errors import InvalidSetting

__all__ = [
    "BYTES_MAX",
    "SUFFIX",
    "Facts",
    "digest",
    "facts_of",
    "find",
    "prebuilt",
    "read",
    "write",
]

SUFFIX = ".zdict"

BYTES_MAX = 256 * 1024
"""Largest prebuilt dictionary: what the warm tier uses; all of it is in memory while in use."""

_FILE_BYTES_MAX = 16 * 1024 * 1024
"""Largest file that is read at all; zstd's own dictionaries are far smaller."""

_MAGIC = 0xEC30A437
"""First word of a zstd dictionary (RFC 8878, section 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a dictionary."""

    name: str
    recipe: str
    """How it was made: the command, or the name of a committed recipe."""
    source: str
    """Whose pages it was made from, in a sentence."""
    date: str
    """Day it was made, as YYYY-MM-DD."""
    bytes: int
    sha256: str
    pages_sampled: int
    gain: float
    """Encoded bytes without it, divided by those with it, on pages it was not made from."""
    private: bool
    """Whether it may hold traces of the machine it was made on: for use on that machine only."""


def prebuilt() -> list[Path]:
    """The dictionaries of this package, sorted by name."""
    return sorted(Path(__file__).parent.glob(f"*{SUFFIX}"))


def find(name: str) -> Path:
    """
    The file of a prebuilt dictionary, or a file by its path.

    Raises:
        InvalidSetting: there is neither.
    """
    for path in prebuilt():
        if path.stem == name:
            return path
    path = Path(name)
    if path.is_file():
        return path
    known = ", ".join(path.stem for path in prebuilt()) or "none"
    raise InvalidSetting(
        f"dictionary is not found: {name!r}", f"give a file, or a prebuilt one: {known}"
    )


def facts_of(path: Path) -> Facts:
    """
    The facts beside a dictionary.

    Raises:
        InvalidSetting: there are none, or they are no facts.
    """
    beside = path.with_suffix(".json")
    try:
        values = json.loads(beside.read_text(encoding="utf-8"))
        return Facts(**{field.name: values[field.name] for field in fields(Facts)})
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidSetting(
            f"facts of the dictionary cannot be read: {beside}: {error}",
            "make it anew with `agentzip dict train`",
        ) from error


def read(path: Path) -> bytes:
    """
    The bytes of a dictionary, checked.

    Raises:
        InvalidSetting: they cannot be read, are no dictionary, or not the one of its facts.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidSetting(f"dictionary cannot be read: {path}: {error}") from error
    if len(data) < 8 or len(data) > _FILE_BYTES_MAX or struct.unpack("<I", data[:4])[0] != _MAGIC:
        raise InvalidSetting(f"file is no zstd dictionary: {path}")
    if digest(data) != facts_of(path).sha256:
        raise InvalidSetting(
            f"dictionary is not the one that its facts describe: {path}",
            "take both files from one place, or make it anew",
        )
    return data


def write(data: bytes, facts: Facts, path: Path) -> None:
    """
    Write a dictionary and its facts.

    Raises:
        InvalidSetting: the place cannot be written to.
    """
    try:
        path.write_bytes(data)
        text = json.dumps(asdict(facts), indent=2)
        path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidSetting(f"dictionary cannot be written: {path}: {error}") from error


def digest(data: bytes) -> str:
    """SHA-256 as hexadecimal text."""
    return hashlib.sha256(data).hexdigest()

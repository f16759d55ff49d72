"""
Sizes and durations as people write them.

One number with one unit, no guessing: `8GB` is 8 000 000 000 bytes and `8GiB` is 8 589 934 592.
`8G`, `8gb` and a bare `8` are refused, because different tools read each of them differently and
a pool that is seven percent too large is noticed only when memory has run out.
"""

import re

from agentzip.errors import InvalidSetting

__all__ = ["format_bytes", "format_microseconds", "parse_duration", "parse_size"]

_SIZE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}

_NUMBER_WITH_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(text: str, field: str = "size") -> int:
    """
    Read a size in bytes.

    Args:
        text: A number and one of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB.
        field: Name of the setting, for the message.

    Raises:
        InvalidSetting: the text is no size, or could mean two different ones.
    """
    match = _NUMBER_WITH_UNIT.fullmatch(text)
    if match is None:
        raise InvalidSetting(
            f"{field} is not a size: {text!r}", "write a number and a unit, like 8GB or 512MiB"
        )
    number, unit = match.groups()
    if unit not in _SIZE_UNITS:
        raise InvalidSetting(f"{field} is ambiguous: {text!r}", _size_hint(number, unit))
    size = float(number) * _SIZE_UNITS[unit]
    if size != int(size):
        raise InvalidSetting(f"{field} is not a whole number of bytes: {text!r}")
    if size < 1:
        raise InvalidSetting(f"{field} must be larger than zero: {text!r}")
    return int(size)


def _size_hint(number: str, unit: str) -> str:
    letter = unit[:1].upper()
    if letter in {"K", "M", "G", "T"} and unit.upper() in {letter, f"{letter}B", f"{letter}IB"}:
        return f"write {number}{letter}B (powers of ten) or {number}{letter}iB (powers of two)"
    return "give the unit: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB"


def parse_duration(text: str, field: str = "duration") -> float:
    """
    Read a duration in seconds.

    Args:
        text: A number and one of ms, s, min, h.
        field: Name of the setting, for the message.

    Raises:
        InvalidSetting: the text is no duration.
    """
    match = _NUMBER_WITH_UNIT.fullmatch(text)
    if match is None or match.group(2) not in _DURATION_UNITS:
        raise InvalidSetting(
            f"{field} is not a duration: {text!r}",
            "write a number and a unit (ms, s, min or h), like 10s or 500ms",
        )
    return float(match.group(1)) * _DURATION_UNITS[match.group(2)]


def format_bytes(size: float) -> str:
    """Write a size for people, in powers of two with one decimal."""
    sign = "-" if size < 0 else ""
    size = abs(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{sign}{size:.0f} B" if unit == "B" else f"{sign}{size:.1f} {unit}"
        size /= 1024
    return f"{sign}{size:.1f} TiB"


def format_microseconds(duration_us: float) -> str:
    """Write a duration for people, in the unit that keeps it short."""
    if duration_us < 1000:
        return f"{duration_us:.1f} us"
    if duration_us < 1_000_000:
        return f"{duration_us / 1000:.1f} ms"
    return f"{duration_us / 1_000_000:.2f} s"

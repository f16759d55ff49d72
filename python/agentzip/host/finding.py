"""
What a check of the doctor found: the one value that all checks yield.
"""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Finding", "read", "switched_on"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    name: str
    status: str
    """`ok`, `note` (good to know), `warn` (slower, smaller or less certain) or `fail`."""
    cause: str
    """What was found, exactly."""
    fix: str = ""
    """The smallest change that helps; empty if none is needed."""
    why: str = ""
    """Why it matters; empty if nothing is to be done."""


def read(root: Path, name: str) -> str:
    """Content of a file of the kernel without blanks around; empty if this kernel has none."""
    try:
        return (root / name).read_text(errors="replace").strip()
    except OSError:
        return ""


def switched_on(root: Path, name: str) -> bool:
    """Whether a switch of the kernel is on; one that it does not have is off."""
    return read(root, name) in {"Y", "y", "1"}

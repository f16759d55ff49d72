"""
What is measured: the encodings, how much of everything, and what each figure should reach.
"""

from dataclasses import dataclass

from agentzip.errors import InvalidSetting
from agentzip.workloads.crew import KINDS

__all__ = ["BY_NAME", "ENCODINGS", "RATIO_AIMS", "EncodePlan", "Encoding"]


@dataclass(frozen=True, slots=True)
class Encoding:
    """One way to keep pages, ours or the kernel's."""

    name: str
    algorithm: str = "zstd"
    """Of the engine; `zram` and `ksm` are the kernel's own ways."""
    level: int | None = 3
    dictionary: str = ""
    """`own` (trained on each target itself), `other` (on another sandbox), or none."""
    cold: bool = False
    """Recoded after the page out, in the background tier."""
    peer: bool = False
    """Recoded against the first sandbox, which is cold for itself."""
    uniform: bool = False
    """On instances started alike: no address randomisation, fixed hash seeds."""
    sandboxes_max: int = 64
    """Fewer than asked for where a page takes long."""

    @property
    def is_kernel(self) -> bool:
        """Whether the engine takes no part."""
        return self.algorithm in {"zram", "ksm"}


ENCODINGS = (
    Encoding("lz4", "lz4", 0),
    Encoding("lz4hc", "lz4", 9),
    Encoding("zstd-1", level=1),
    Encoding("zstd-3"),
    Encoding("zstd-9", level=9),
    # 1.5 ms a page: all eight would take minutes and say nothing more.
    Encoding("zstd-19", level=19, sandboxes_max=1),
    Encoding("zstd-3-dict", dictionary="other"),
    Encoding("warm", dictionary="own"),
    Encoding("cold-own", dictionary="own", cold=True),
    Encoding("cold-peer", dictionary="own", cold=True, peer=True),
    Encoding("warm-uniform", dictionary="own", uniform=True),
    Encoding("cold-peer-uniform", dictionary="own", cold=True, peer=True, uniform=True),
    Encoding("zram-lz4", "zram", None),
    Encoding("ksm", "ksm", None),
)
"""In the order of measuring; the kernel's come last, because KSM changes what it looks at."""

BY_NAME = {encoding.name: encoding for encoding in ENCODINGS}

RATIO_AIMS: dict[str, dict[str, float]] = {
    "warm": {"python": 4.0, "json": 4.2, "browser": 3.2, "node": 4.2},
    "cold-own": {"python": 5.0, "json": 5.5, "browser": 5.5, "node": 6.0},
    "cold-peer": {"python": 7.5, "json": 7.0, "browser": 6.3, "node": 6.3},
    "cold-peer-uniform": {"python": 11.0, "json": 11.0, "node": 6.5},
}
"""Encoding -> workload -> the page ratio that it should reach with eight sandboxes."""


@dataclass(frozen=True, slots=True)
class EncodePlan:
    """How much is measured."""

    workloads: tuple[str, ...] = KINDS
    encodings: tuple[str, ...] = tuple(BY_NAME)
    sandboxes: int = 8
    size: float = 1.0
    """Of each instance; 1.0 is some 100 MB."""
    steps: int = 6
    """Tool calls of each sandbox with its pages out: the faults that are timed."""

    def __post_init__(self) -> None:
        for field, chosen, known in (
            ("workload", self.workloads, KINDS),
            ("encoding", self.encodings, tuple(BY_NAME)),
        ):
            unknown = [name for name in chosen if name not in known]
            if unknown or not chosen:
                raise InvalidSetting(
                    f"{field} is not known: {', '.join(unknown) or 'none given'}",
                    f"choose from {', '.join(known)}",
                )
        if not 1 <= self.sandboxes <= 64:
            raise InvalidSetting(
                f"sandboxes is out of range: {self.sandboxes}", "give a value from 1 to 64"
            )
        if not 0.05 <= self.size <= 20:
            raise InvalidSetting(f"size is out of range: {self.size}", "give 0.05 to 20")

    @classmethod
    def quick(cls, workloads: tuple[str, ...] = ("json",)) -> "EncodePlan":
        """A look in some seconds: the path is the same, the figures mean little."""
        return cls(workloads, ("lz4", "zstd-3"), sandboxes=2, size=0.15, steps=2)

    def chosen(self) -> list[Encoding]:
        """The encodings, in the order of measuring."""
        return [encoding for encoding in ENCODINGS if encoding.name in self.encodings]

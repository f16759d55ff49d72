"""
What was found, and the arithmetic on it: pure.

`page_ratio` is 4096 x the pages that are out (same-filled ones left out) over the bytes that the
pool holds for them.  What it holds for pages that came home by themselves in between, in case they
leave unchanged (`kept_bytes`), is no part of it.  `page_ratio_net` counts tables, index,
dictionaries and layouts on top.  `ratio` and `ratio_pss` are those of `agentzip.accounting`:
everything that is still taken counts, kept copies, the pool's waste, daemon and keeper included.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentzip.accounting import percentile

__all__ = [
    "MEANINGS",
    "PAGE_BYTES",
    "EncodeResult",
    "EncodingResult",
    "Group",
    "Spread",
    "Stored",
    "WorkloadResult",
    "encoded",
    "grouped",
    "page_ratio",
]

PAGE_BYTES = 4096

SAME_FILLED = "same"
"""Codec of pages that are one word repeated: they take no room and are no merit of an encoder."""

MEANINGS = {
    "page_ratio": "4096 x pages that are out (not same-filled) / encoded bytes that they need, "
    "leaders included; copies kept of pages that are home again count in ratio and ratio_pss only",
    "page_ratio_net": "the same over those bytes and all books: tables, index, dictionaries",
    "page_ratio_unique": "the same with pages found twice counted once",
    "page_ratio_first": "the first sandbox alone (with a peer: the peer itself)",
    "page_ratio_others": "the other sandboxes (with a peer: those that refer to it)",
    "ratio": "baseline RSS / all that is still taken (agentzip.accounting)",
    "ratio_pss": "baseline PSS / all that is still taken",
    "encode_us": "making the blob of a page, alone; cold encodings: processor time of this process "
    "a page, one sample per part of a recode; zram: process_madvise(PAGEOUT); ksm: ksmd's time a "
    "page and scan",
    "decode_us": "making a page from its blob, alone, for the faults of the sandboxes' own steps; "
    "zram: as fault_us",
    "page_out_us": "processor time of this process a page for a page out (cold encodings: the warm "
    "one before): moving, reading, encoding, storing; one sample per portion",
    "fault_us": "from reading a fault to the end of its copy, in the same steps; zram: reading one "
    "byte of a swapped page from outside, call included",
    "page_in_us": "wall time a page, everything that was left brought home in batches",
    "cpu_s": "processor time for training, page out, tier moves and compaction",
    "pool_waste": "pool bytes that are neither payload nor free to the host / payload",
}
"""What each figure of the JSON object is."""


class Stored(Protocol):
    """A row of the engine's census."""

    @property
    def class_name(self) -> str:
        """What the pages belong to."""

    @property
    def codec(self) -> str:
        """How they are kept."""

    @property
    def pages(self) -> int:
        """How many."""

    @property
    def bytes(self) -> int:
        """Their bytes in the pool."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in microseconds."""

    p50: float
    p99: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread | None":
        """Of some samples; None if there are none."""
        if not samples:
            return None
        return cls(percentile(samples, 50), percentile(samples, 99), len(samples))


@dataclass(frozen=True, slots=True)
class Group:
    """Pages that have something in common."""

    pages: int
    bytes: int
    ratio: float | None
    """None for pages that take no bytes."""


@dataclass(slots=True)
class EncodingResult:
    """All figures of one encoding on one workload; what a way does not have is None."""

    name: str
    sandboxes: int
    page_ratio: float = 0.0
    ratio: float = 0.0
    ratio_pss: float = 0.0
    encode_us: Spread | None = None
    decode_us: Spread | None = None
    fault_us: Spread | None = None
    cpu_s: float = 0.0
    pool_waste: float | None = None
    index_bytes: int | None = None
    dictionary_bytes: int | None = None
    page_ratio_net: float | None = None
    page_ratio_unique: float | None = None
    page_ratio_first: float | None = None
    page_ratio_others: float | None = None
    page_out_us: Spread | None = None
    page_in_us: float | None = None
    pages_stored: int = 0
    pages_same_filled: int = 0
    pages_deduplicated: int = 0
    pages_delta: int = 0
    pool_bytes: int = 0
    payload_bytes: int = 0
    """Encoded bytes that pages that are out need."""
    kept_bytes: int = 0
    """Encoded bytes of pages that are home again, kept in case they leave unchanged."""
    table_bytes: int = 0
    overhead_bytes: int = 0
    after_pss_bytes: int = 0
    baseline_rss_bytes: int = 0
    baseline_pss_bytes: int = 0
    host_gain_bytes: int = 0
    step_ms: Spread | None = None
    """Of the tool calls that found their pages out, in milliseconds."""
    results_wrong: int = 0
    """Sandboxes whose digest differs, and pages that could not be produced."""
    refused: list[str] = field(default_factory=list)
    """Processes that could not be attached, with the reason."""
    by_class: dict[str, Group] = field(default_factory=dict)
    by_codec: dict[str, Group] = field(default_factory=dict)


@dataclass(slots=True)
class WorkloadResult:
    """All encodings on one workload."""

    kind: str
    encodings: list[EncodingResult] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Encoding -> why it was not measured."""

    @property
    def results_wrong(self) -> int:
        """Over all encodings."""
        return sum(one.results_wrong for one in self.encodings)


@dataclass(slots=True)
class EncodeResult:
    """A whole run."""

    plan: dict[str, object]
    host: dict[str, object] = field(default_factory=dict)
    workloads: list[WorkloadResult] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Workload -> why it cannot run on this host."""
    seconds: float = 0.0

    @property
    def results_wrong(self) -> int:
        """Over all workloads."""
        return sum(one.results_wrong for one in self.workloads)


def page_ratio(pages: int, stored_bytes: int) -> float:
    """How many bytes of pages one stored byte stands for."""
    return PAGE_BYTES * pages / stored_bytes if stored_bytes else 0.0


def encoded(rows: Iterable[Stored]) -> tuple[int, int]:
    """Pages and bytes of what an encoder had to deal with."""
    counted = [row for row in rows if row.codec != SAME_FILLED]
    return sum(row.pages for row in counted), sum(row.bytes for row in counted)


def grouped(rows: Iterable[Stored], name: Callable[[Stored], str]) -> dict[str, Group]:
    """Rows added up by something they have in common, the largest group first."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        entry = sums.setdefault(name(row), [0, 0])
        entry[0] += row.pages
        entry[1] += row.bytes
    ordered = sorted(sums.items(), key=lambda entry: (-entry[1][1], -entry[1][0], entry[0]))
    return {
        key: Group(pages, stored, page_ratio(pages, stored) if stored else None)
        for key, (pages, stored) in ordered
    }

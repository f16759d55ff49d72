"""
The plain values that cross borders: settings going in, reports coming out.

The Rust core returns its own frozen classes, the fake engine and the control socket cannot.
So every report has one dataclass here with the same field names, and everybody above the pager
(daemon, socket, command line, demo) speaks only these.
What each field means is written once, in `_native.pyi`; a unit test compares the names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from agentzip.errors import InvalidSetting

__all__ = [
    "ALGORITHMS",
    "LATENCIES",
    "MEMORY_FLOOR_BYTES",
    "Analysis",
    "AttachReport",
    "CensusRow",
    "ClassForecast",
    "CompactReport",
    "DetachReport",
    "DictionaryInfo",
    "EngineStats",
    "Latency",
    "LearnedSet",
    "PageInReport",
    "PageOutReport",
    "RecodeReport",
    "Refault",
    "Region",
    "Settings",
    "SpaceStatus",
    "SpillReport",
    "Stay",
    "TargetInfo",
    "Training",
    "WakeReport",
    "from_mapping",
    "from_object",
]

ALGORITHMS = ("zstd", "lz4", "raw")
"""What pages can be encoded with."""

MEMORY_FLOOR_BYTES = 64 * 2**20
"""MemAvailable that a detach leaves on the host; below it the detach stops and can be repeated."""

_LEVELS = {"zstd": (-7, 22), "lz4": (0, 12)}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one engine runs; checked when made, so that a bad value never reaches the core."""

    run_dir: Path
    """Directory of the control socket, the lock and the keeper's socket."""
    pool_bytes_max: int = 8 * 10**9
    """Hard cap of the pool's memory; at the cap nothing more is paged out."""
    algorithm: str = "zstd"
    """`zstd` (denser), `lz4` (faster) or `raw` (no encoding; for comparison)."""
    level: int | None = None
    """Level of the algorithm; None is 3 for zstd and 0 for lz4."""
    fault_threads: int = 2
    """Threads that answer page faults, 1 to 16."""
    stop_limit_us: int = 20_000
    """Longest time one thread of a target may be kept stopped."""
    chunk_pages: int = 1024
    """Pages moved per step of a page out, 16 to 2048."""
    crash_at: str | None = None
    """Fault injection for tests: `NAME`, `NAME:N` or `NAME:N:ACTION`; see `_native.pyi`."""
    deduplicate: bool = True
    """Equal pages of a trust domain share one slot of the pool."""
    disk_path: Path | None = None
    """File that the coldest pages may be written to, encrypted; None for none."""
    disk_bytes_max: int = 0
    """Most bytes of that file."""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise InvalidSetting(
                f"algorithm is not known: {self.algorithm!r}",
                f"choose one of {', '.join(ALGORITHMS)}",
            )
        self._check("fault_threads", self.fault_threads, 1, 16)
        self._check("chunk_pages", self.chunk_pages, 16, 2048)
        self._check("stop_limit_us", self.stop_limit_us, 1_000, 1_000_000)
        self._check("pool_bytes_max", self.pool_bytes_max, 2**20, 2**46)
        if self.level is not None and self.algorithm in _LEVELS:
            self._check("level", self.level, *_LEVELS[self.algorithm])

    @staticmethod
    def _check(field: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise InvalidSetting(
                f"{field} is out of range: {value}", f"give a value from {low} to {high}"
            )

    @property
    def effective_level(self) -> int:
        """The level that the core is given."""
        if self.level is not None:
            return self.level
        return 3 if self.algorithm == "zstd" else 0


@dataclass(frozen=True, slots=True)
class AttachReport:
    """What an attach cost."""

    pid: int
    stop_us: float
    attach_us: float
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class PageOutReport:
    """What one page out did."""

    pid: int
    pages_moved: int
    pages_stored: int
    pages_clean: int
    pages_same_filled: int
    pages_deduplicated: int
    pages_raw: int
    pages_returned: int
    pages_pinned: int
    regions_skipped: int
    bytes_logical: int
    bytes_stored: int
    chunks: int
    elapsed_us: float
    stop_us: float
    hold_us: list[float]
    pool_full: bool
    interrupted: bool


@dataclass(frozen=True, slots=True)
class PageInReport:
    """What one page in did."""

    pid: int
    pages_in: int
    pages_present: int
    pages_lost: int
    pages_out: int
    elapsed_us: float


@dataclass(frozen=True, slots=True)
class DetachReport:
    """Whether a target is as it was found."""

    pid: int
    pages_in: int
    pages_out: int
    complete: bool
    elapsed_us: float
    stop_us: float


@dataclass(frozen=True, slots=True)
class SpaceStatus:
    """One managed address space."""

    id: int
    pid: int
    parent_id: int
    command: str
    state: str
    pages_out: int
    pages_staged: int
    pages_kept: int
    pages_same_filled: int
    pages_lost: int
    bytes_logical: int
    bytes_pool: int
    bytes_table: int
    faults: int
    faults_zero: int
    wakes: int
    pages_prefetched: int
    pages_spared: int
    pages_spared_touched: int
    pages_missed: int
    pages_late: int
    pages_windowed: int
    learned_pages: int
    refaults_dropped: int
    prefetching: bool


@dataclass(frozen=True, slots=True)
class WakeReport:
    """What a wake brought home."""

    pid: int
    pages_in: int
    pages_following: int
    pages_present: int
    pages_spared: int
    pages_lost: int
    elapsed_us: float


@dataclass(frozen=True, slots=True)
class LearnedSet:
    """Pages that a target needs when it wakes."""

    pid: int
    pages: int
    pages_expected: int
    pages_out: int
    wakes: int


@dataclass(frozen=True, slots=True)
class Refault:
    """Pages in a row that came back because they were touched."""

    start: int
    end: int
    after_ms: int


@dataclass(frozen=True, slots=True)
class Training:
    """A dictionary that was trained and kept."""

    id: int
    bytes: int
    pages_sampled: int
    gain: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class DictionaryInfo:
    """One dictionary that an engine holds."""

    id: int
    name: str
    domain: str
    bytes: int
    uses: int
    dropped: bool


@dataclass(frozen=True, slots=True)
class RecodeReport:
    """What a background pass over the stored pages of one target did."""

    pid: int
    pages_seen: int
    pages_recoded: int
    pages_delta: int
    bytes_before: int
    bytes_after: int
    cpu_us: float
    done: bool
    preempted: bool


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction of the pool did."""

    pages_moved: int
    bytes_before: int
    bytes_after: int
    cpu_us: float
    done: bool


@dataclass(frozen=True, slots=True)
class SpillReport:
    """What a spill to the disk tier did."""

    pid: int
    pages_spilled: int
    bytes_spilled: int
    cpu_us: float
    stopped: str


@dataclass(frozen=True, slots=True)
class CensusRow:
    """Pages of a target that are out, of one class of memory and in one encoding."""

    class_name: str
    codec: str
    pages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency distribution in microseconds."""

    count: int
    p50_us: float
    p99_us: float
    max_us: float
    mean_us: float


LATENCIES = ("fault_service", "decode", "encode", "stop", "hold", "wake")
"""Fields of `EngineStats` that are distributions."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters and latencies of the engine."""

    pool_bytes: int
    pool_payload_bytes: int
    pool_bytes_max: int
    pool_slots: int
    pool_waste_bytes: int
    table_bytes: int
    index_bytes: int
    dictionary_bytes: int
    learned_bytes: int
    disk_bytes: int
    disk_bytes_max: int
    faults: int
    faults_zero: int
    faults_disk: int
    faults_already_present: int
    faults_retried: int
    fault_panics: int
    """Panics of fault threads: a bug, survived; what was not answered is tried again."""
    pages_lost: int
    events_fork: int
    events_remap: int
    events_remove: int
    events_unmap: int
    fault_service: Latency
    decode: Latency
    """Making a page from its blob in the pool, for a fault."""
    encode: Latency
    """Making a blob of a page that leaves."""
    stop: Latency
    hold: Latency
    wake: Latency
    keeper_pid: int
    keeper_restarts: int


@dataclass(frozen=True, slots=True)
class Region:
    """One mapping of a process and the pager's decision about it."""

    start: int
    end: int
    protection: str
    name: str
    kind: str
    class_name: str
    resident_bytes: int
    out_bytes: int
    movable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ClassForecast:
    """What is to be expected of one class of memory of a process."""

    class_name: str
    resident_bytes: int
    movable_bytes: int
    pages: int
    pages_sampled: int
    pages_same_filled: int
    pages_raw: int
    pages_equal: int
    stored_bytes: int
    stored_bytes_dictionary: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Memory of a process that may not leave, and why."""

    reason: str
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is to be expected of a page out of a process."""

    pid: int
    command: str
    rss_bytes: int
    pss_bytes: int
    leaving_pss_bytes: int
    pool_bytes: int
    pool_bytes_dictionary: int
    table_bytes: int
    dictionary_bytes: int
    classes: list[ClassForecast]
    stays: list[Stay]
    cpu_us: float


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What can be said of a process before attaching."""

    pid: int
    start_time: int
    command: str
    threads: int
    seccomp: int


def from_object(kind: type[T], source: object) -> T:
    """Copy a value of the Rust core into the dataclass of the same shape."""
    shape: Any = kind
    names = _field_names(shape)
    # Once a second for each target of the host: one call for all fields instead of one for each.
    values = attrgetter(*names)(source)
    if kind is EngineStats:
        return from_mapping(kind, dict(zip(names, values, strict=True)), _latency_of_object)
    return kind(*values)


def from_mapping(kind: type[T], source: Mapping[str, Any], latency: Any = None) -> T:
    """Copy a JSON object into the dataclass of the same shape; unknown keys are ignored."""
    shape: Any = kind
    values = {name: source[name] for name in _field_names(shape)}
    if kind is EngineStats:
        convert = latency or _latency_of_mapping
        for name in LATENCIES:
            values[name] = convert(values[name])
    return kind(**values)


def _latency_of_object(source: object) -> Latency:
    return from_object(Latency, source)


def _latency_of_mapping(source: Mapping[str, Any]) -> Latency:
    return from_mapping(Latency, source)


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))

"""
What one mode leaves behind: readings, which are not yet figures (result.py).  Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from agentzip.bench.fanout.profile import Look

__all__ = [
    "Cpu",
    "Footprint",
    "Habits",
    "MemoryRun",
    "ModeRun",
    "Played",
    "Sample",
    "mean_of",
]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a mode takes beside the sandboxes' own memory, in bytes."""

    pool: int = 0
    tables: int = 0
    overhead: int = 0
    """Daemon and keeper without pool and tables."""
    overhead_files: int = 0
    """The part of `overhead` that is in files of a disk."""
    unmapped: int = 0
    """Pages in the kernel's swap cache that no process has mapped: no PSS has them."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.pool + self.tables + self.overhead + self.unmapped


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processor time of a mode, in seconds."""

    daemon: float = 0.0
    """Or the engine, where there is no daemon."""
    keeper: float = 0.0
    kernel: float = 0.0
    """Kernel threads that reclaim or merge."""
    advice: float = 0.0
    """Of the bench's own threads that tell the kernel what to take."""

    def __sub__(self, before: "Cpu") -> "Cpu":
        return Cpu(
            self.daemon - before.daemon,
            self.keeper - before.keeper,
            self.kernel - before.kernel,
            self.advice - before.advice,
        )

    @property
    def total(self) -> float:
        """All of it."""
        return self.daemon + self.keeper + self.kernel + self.advice


@dataclass(frozen=True, slots=True)
class Habits:
    """Counters of a prefetch since the sandbox was attached, by the engine of that moment."""

    spared: int = 0
    spared_touched: int = 0
    prefetched: int = 0
    missed: int = 0

    def since(self, before: "Habits") -> "Habits":
        """What was counted after an earlier reading; all, if an engine began anew in between."""
        if self.prefetched < before.prefetched or self.missed < before.missed:
            return self
        return Habits(
            self.spared - before.spared,
            self.spared_touched - before.spared_touched,
            self.prefetched - before.prefetched,
            self.missed - before.missed,
        )

    def __add__(self, other: "Habits") -> "Habits":
        return Habits(
            self.spared + other.spared,
            self.spared_touched + other.spared_touched,
            self.prefetched + other.prefetched,
            self.missed + other.missed,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory at one moment."""

    at_s: float
    """Since the mode began."""
    used_bytes: int
    """Of the host, above what was used before the mode began."""
    footprint: Footprint
    rss: Mapping[int, int]
    """Of each sandbox."""
    pss: Mapping[int, int]
    waiting: frozenset[int]
    steady: bool
    """No sandbox has taken its last turn."""
    kernel_bytes: int = 0
    """What the kernel holds for itself, above what it held before the mode began."""
    programs_bytes: int = 0
    """What all programs of the host hold that is in no file, above what they held before."""
    file_bytes: int = 0
    """The part of all `pss` that is in files of a disk."""
    shmem_bytes: int = 0
    """The part of all `pss` that is in memory files."""


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """Memory over one mode."""

    samples: Sequence[Sample]
    """While turns were taken."""
    peak_bytes: int
    """Most host memory used at once, the start of the sandboxes included."""

    def steady(self) -> list[Sample]:
        """Samples from the first turn to the first sandbox that finished."""
        return [sample for sample in self.samples if sample.steady]

    def baseline(self) -> tuple[dict[int, float], dict[int, float]]:
        """Mean RSS and PSS of each sandbox while it waits; while it plays if it never waited."""
        rss: dict[int, list[int]] = {}
        pss: dict[int, list[int]] = {}
        for sample in self.steady():
            for instance in sample.rss:
                if instance in sample.waiting or instance not in rss:
                    rss.setdefault(instance, []).append(sample.rss[instance])
                    pss.setdefault(instance, []).append(sample.pss[instance])
        return (
            {instance: fmean(values) for instance, values in rss.items()},
            {instance: fmean(values) for instance, values in pss.items()},
        )

    @property
    def mean_bytes(self) -> int:
        """Mean host memory used while turns were taken."""
        return mean_of(sample.used_bytes for sample in self.steady())

    @property
    def cost_bytes(self) -> int:
        """Mean of PSS and footprint of everything while turns were taken."""
        return mean_of(sum(one.pss.values()) + one.footprint.total for one in self.steady())

    def made_of(self) -> dict[str, int]:
        """
        The parts of `cost_bytes`, and of `overhead` that in files.

        `kernel` and `programs` are the host's, above what was there before the mode began.
        """
        steady = self.steady()
        private = (sum(one.pss.values()) - one.file_bytes - one.shmem_bytes for one in steady)
        return {
            "private": mean_of(private),
            "files": mean_of(one.file_bytes for one in steady),
            "shared_memory": mean_of(one.shmem_bytes for one in steady),
            "pool": mean_of(one.footprint.pool for one in steady),
            "tables": mean_of(one.footprint.tables for one in steady),
            "overhead": mean_of(one.footprint.overhead for one in steady),
            "overhead_files": mean_of(one.footprint.overhead_files for one in steady),
            "unmapped": mean_of(one.footprint.unmapped for one in steady),
            "kernel": mean_of(one.kernel_bytes for one in steady),
            "programs": mean_of(one.programs_bytes for one in steady),
        }


@dataclass(slots=True)
class Played:
    """What one sandbox did."""

    instance: int
    workload: str = ""
    turns_s: list[float] = field(default_factory=list)
    wakes_s: list[float] = field(default_factory=list)
    homes_s: list[float] = field(default_factory=list)
    """Of the wakes, until the mode let it go on."""
    asleep: list[Look] = field(default_factory=list)
    """Before each wake, of the first few sandboxes."""
    awake: list[Look] = field(default_factory=list)
    """After each turn."""
    said: list[str] = field(default_factory=list)
    """What it said in each turn, recall and answer."""
    checks_wrong: int = 0
    habits: list[Habits] = field(default_factory=list)
    """After each turn."""
    began_s: float = 0.0
    ended_s: float = 0.0
    digest: str = ""
    """Over everything, after its last turn; empty if it did not come so far."""
    finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRun:
    """All that one mode left behind: readings, not yet figures."""

    mode: str
    played: Sequence[Played]
    memory: MemoryRun
    cpu: Cpu
    wall_s: float
    """From the first turn to the last."""
    processors: int
    faults: int
    oom_kills: int
    start_s: float = 0.0
    """Until all sandboxes were up."""
    busy_share: float = 0.0
    """Of the machine's processors, whoever kept them busy, while turns were taken."""
    page_outs_s: float = 0.0
    """What page outs took in that time, one after the other."""
    stopped: str = ""
    """Why it was ended early; empty if it was not."""
    notes: Mapping[str, object] = field(default_factory=dict)


def mean_of(values: Iterable[float]) -> int:
    """In whole bytes; 0 for no values."""
    numbers = list(values)
    return int(fmean(numbers)) if numbers else 0

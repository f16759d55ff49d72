"""
The plain values that tell of sandboxes and scopes, and the one face that everybody asks.

A *sandbox* is the processes of one agent environment; a *scope* is a rule that selects sandboxes.
The control socket, HTTP, the Python client, metrics and the terminal speak only these, so none of
them depends on how the lifecycle works.
"""

from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "AWAKE",
    "PHASES",
    "WAITS",
    "Decision",
    "FileReadAhead",
    "Fleet",
    "HintReport",
    "SandboxStatus",
    "ScopeStatus",
]

PHASES = (
    "starting",
    "running",
    "waiting_model",
    "waiting_tool",
    "waiting_user",
    "resuming",
    "finishing",
    "done",
)
"""Where a sandbox can be in its life (design section 5; `resuming`: ARCHITECTURE)."""

AWAKE = frozenset({"starting", "running", "resuming"})
"""Phases in which a sandbox works, or is just about to."""

WAITS = frozenset({"waiting_model", "waiting_tool", "waiting_user"})
"""Phases in which a sandbox is expected to do nothing for a while and then go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeStatus:
    """One rule that selects sandboxes."""

    pattern: str
    """cgroup pattern, `pid:N`, or `run:NAME` for a sandbox that `agentzip run` started."""
    enabled: bool
    isolation: str
    source: str
    """`config` (the file), `command` (by `scope add`, kept) or `run` (ends with its process)."""
    sandboxes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """One sandbox, as the last tick saw it."""

    name: str
    scope: str
    """Pattern of the scope that selects it."""
    cgroup: str
    """Path below the cgroup root; empty for pids and `run`."""
    pids: list[int]
    """Its processes that are attached."""
    phase: str
    phase_source: str
    """Who says so: `hint`, `frozen` (cgroup freezer or container pause) or `seen`."""
    phase_age_s: float
    expected_rest_s: float
    """How long the phase is expected to go on."""
    rss_bytes: int
    """Resident now, sum over its processes."""
    bytes_logical: int
    """Memory that is out, before encoding: `orig_mem`."""
    bytes_pool: int
    """The same in the pool: `stored_mem`."""
    bytes_table: int
    pages_out: int
    faults: int
    wakes: int
    prefetch_hit_rate: float | None
    """Share of the pages needed after a wake that were home before; None before any wake."""
    prefetch_waste: float | None
    """Share of the prefetched pages that were not needed."""
    wake_p50_ms: float | None
    wake_p99_ms: float | None
    """From an announced wake, or its first fault, until its working set was home."""
    cpu_s: float
    """Processor seconds that paging it out and in has taken from the daemon."""
    pinned: bool
    """Somebody said that its memory stays."""
    left_alone: str
    """Why nothing is paged out (`ratio 1.2 after 4000 pages`), empty if it is."""
    min_wait_s: float
    """Waits shorter than this are not worth a page out, as the breaker has learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the planner decided for a sandbox, and why."""

    age_s: float
    """How long ago."""
    action: str
    """`page_out`, `prefetch`, `page_in`, `leave` or `spill`."""
    pid: int
    pages: int
    gain: float
    """Byte-seconds of memory that it gains at the price of then."""
    cost: float
    """What it costs in the same unit."""
    reason: str
    """The numbers in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HintReport:
    """What a hint did."""

    sandbox: str
    phase: str
    former_phase: str
    pages_in: int
    """Pages brought home before the answer, when the hint ended a wait."""
    elapsed_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReadAhead:
    """What is foreseen of the reads of files."""

    source: str
    """Where reads are seen: `tracepoints` or `positions`."""
    processes: int
    """Those that are followed now."""
    pages_asked: int
    """Pages that the kernel was asked to read before the sandbox did."""


class Fleet(Protocol):
    """All sandboxes of a host; every method may be called from any thread."""

    def sandboxes(self) -> list[SandboxStatus]:
        """Every sandbox, sorted by name."""

    def sandbox_of(self, pid: int) -> str | None:
        """Name of the sandbox that a living process belongs to."""

    def hint(
        self, sandbox: str, phase: str, expect_s: float | None = None, source: str = "cli"
    ) -> HintReport:
        """
        Say where a sandbox is in its life.

        A hint that ends a wait brings the working set home before it returns; `resuming`, which
        says that the wait is about to end, returns at once and has it brought home meanwhile.

        Raises:
            NoSuchSandbox: there is none of this name.
            InvalidSetting: the phase is not known, or `expect_s` is not within 0 to a week.
        """

    def explain(self, sandbox: str) -> list[Decision]:
        """The last decisions, newest first; raises NoSuchSandbox."""

    def page_out(self, sandbox: str) -> int:
        """Page a sandbox out now, whatever the planner thinks; returns pages moved."""

    def page_in(self, sandbox: str) -> int:
        """Bring all of a sandbox home; returns pages."""

    def pin(self, sandbox: str, pinned: bool) -> None:
        """Keep a sandbox in memory, or give it back to the planner."""

    def scopes(self) -> list[ScopeStatus]:
        """Every scope, those of the configuration first."""

    def scope_add(self, pattern: str, isolation: str = "scope") -> ScopeStatus:
        """Select more sandboxes, kept over restarts; one that is there already is enabled."""

    def sandbox_run(self, name: str, pid: int, start_time: int) -> ScopeStatus:
        """
        Let a process and its descendants be a sandbox of this name for as long as they live.

        Raises:
            InvalidSetting: the name cannot be used or is taken, or the process is in a sandbox.
            NoSuchProcess: it has ended, or the pid names another one now.
        """

    def scope_enable(self, pattern: str, enabled: bool) -> ScopeStatus:
        """Switch a scope on or off; off gives its sandboxes back.  Raises NoSuchScope."""

    def scope_remove(self, pattern: str) -> ScopeStatus:
        """
        Forget a scope that a command added.

        Raises:
            NoSuchScope: there is none with this pattern.
            InvalidSetting: the configuration names it.
        """

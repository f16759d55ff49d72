"""
Where a sandbox is in its life, from what it says and from what can be seen.

        begin ──> starting ──────> running <────────────────────────┐
                     │                │  ^                          │ a process is busy
                     │ all quiet      │  └── thawed                 │ (against a hint: for 2 s,
                     v                v                             │  or its time is over)
                  waiting_model ──> waiting_user      waiting_tool ─┘
                   (too old for a model's answer)      (by hint only)

        waiting_* ──> resuming ──> running     (resuming by hint only; back to waiting_model
                                                if nothing comes of it)
        finishing, done: by hint; done as well when the last process is gone

Waiting does not mean that nothing happens: an agent framework ticks at 1 to 8 % of a processor
while it waits for the model.  So each process is judged by itself, by the level of its processor
time against its own tick, and by what its threads were found doing in the last looks.  One glimpse
of a running thread means nothing; processor time above the level ends a wait at once, because what
runs touches memory.

What a sandbox says outranks what is seen, until what is seen contradicts it for long enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Literal

from agentzip.errors import InvalidSetting
from agentzip.sandboxes import AWAKE, PHASES, WAITS

__all__ = [
    "Hint",
    "PhaseState",
    "ProcessReading",
    "ProcessState",
    "Reading",
    "WaitHistory",
    "advance",
    "apply_hint",
    "begin",
    "counted_on_s",
    "expected_rest_s",
    "notice_s",
    "quiet_processes",
]

Source = Literal["hint", "frozen", "seen"]

_BUSY_CORES = 0.10
"""Below it a process ticks, above it works: frameworks were seen to tick at up to 0.08."""

_BUSY_CORES_MAX = 0.25
"""No process that takes more than this is waiting, whatever was said of it."""

_FAULTS_PER_S = 500.0
"""A process that waits for so many of its own pages works, though it takes no processor time."""

_LOOKS = 4
"""Looks at threads and faults that are remembered; the majority says whether the process works.
At a tick of 8 % a wrong majority is one in 500 looks, and two empty looks end a true one."""

_TICK_WEIGHT = 0.2
"""Weight of the newest look in the tick of a process: about the last five looks count."""

_SETTLE_S = 1.0
"""All processes quiet for this long: the sandbox waits.  Shorter lulls are disk and locks."""

_EVIDENCE_S = 2.0
"""What is seen must hold this long to contradict a hint."""

_STARTING_S_MAX = 10.0
"""A sandbox that is still busy after this has started and runs."""

_USER_AFTER_S = 60.0
"""A wait of unknown kind that lasts longer waits for a person, as long as too few answers of the
model were seen to say better ..."""

_USER_AFTER_S_RANGE = (10.0, 600.0)
"""... and else twice the longest of them, within these bounds."""

_RESUMING_S = 30.0
"""How long a sandbox may be about to go on if it was not said: longer than models write."""

_NOTICES = 4
"""Of the last wakes the one with the least notice says what to count on ..."""

_NOTICE_SHARE = 0.5
"""... and only with this share of it: sandboxes that resume together share the processors."""

_HISTORY_MIN = 3
"""Waits for the model that must be known before their length is believed."""

_HISTORY_MAX = 32
"""Durations that are remembered for each phase: about an hour of an agent's turns."""


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """What one look saw of one process."""

    pid: int
    cpu_cores: float
    """Processor seconds per second since the last reading."""
    threads_running: int
    """Threads in state R or D at this moment."""
    faults: int
    """Refaults since the last reading."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look saw of a sandbox."""

    at: float
    """Seconds of the monotonic clock, as all times of this module."""
    processes: tuple[ProcessReading, ...]
    frozen: bool
    """By the cgroup freezer or a container's pause."""


@dataclass(frozen=True, slots=True)
class Hint:
    """
    What a sandbox, or who runs it, says of its phase.

    Raises:
        InvalidSetting: the phase is not known, or the expected length is negative.
    """

    phase: str
    at: float
    expect_s: float | None
    """How long the phase will last from `at` on; None if nobody knows."""

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise InvalidSetting(
                f"phase is not known: {self.phase}", f"choose one of {', '.join(PHASES)}"
            )
        # Written so that not-a-number fails as well.
        if self.expect_s is not None and not self.expect_s >= 0:
            raise InvalidSetting(
                f"expect_s is no duration: {self.expect_s}", "give seconds, zero or more"
            )


@dataclass(frozen=True, slots=True)
class WaitHistory:
    """How long the last phases of each kind took, oldest first, in seconds."""

    durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def of(self, phase: str) -> tuple[float, ...]:
        """Durations of one phase."""
        return self.durations.get(phase, ())

    def with_duration(self, phase: str, duration_s: float) -> "WaitHistory":
        """The history with one more; the oldest falls out."""
        kept = (*self.of(phase), duration_s)[-_HISTORY_MAX:]
        return WaitHistory({**self.durations, phase: kept})


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What the looks at one process add up to."""

    quiet_since: float | None
    """Since when it does nothing but tick; None while it works."""
    tick_cores: float
    """What it takes while it is known to wait."""
    worked: tuple[bool, ...]
    """Of the last looks, whether a thread ran or it waited for its pages."""
    busy_until: float
    """End of the last look that saw processor time above its level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseState:
    """Where one sandbox is, and what is needed to follow it."""

    phase: str
    since: float
    source: Source
    expected_s: float | None = None
    """Whole length of this phase as the sandbox announced it, from `since` on."""
    history: WaitHistory = field(default_factory=WaitHistory)
    at: float
    """Time of the last reading."""
    frozen: bool = False
    busy_since: float | None = None
    """Since when every look found some process at work; all of them, if it waits for a tool."""
    processes: Mapping[int, ProcessState] = field(default_factory=dict)

    @property
    def quiet_since(self) -> dict[int, float]:
        """The processes that do nothing but tick, and since when."""
        return {
            pid: process.quiet_since
            for pid, process in self.processes.items()
            if process.quiet_since is not None
        }


def begin(at: float) -> PhaseState:
    """A sandbox that was found just now."""
    return PhaseState(phase="starting", since=at, source="seen", at=at)


def advance(state: PhaseState, reading: Reading) -> PhaseState:
    """Go on with a new reading; one that is not newer than the last changes nothing."""
    if reading.at <= state.at:
        return state
    if not reading.processes:
        gone = replace(state, at=reading.at, processes={}, busy_since=None)
        ended = bool(state.processes) and state.phase != "done"
        return _enter(gone, "done", reading.at, "seen") if ended else gone
    told = state.phase in ("waiting_model", "waiting_user") and state.source == "hint"
    processes = {
        process.pid: _look(state, process, reading, told=told) for process in reading.processes
    }
    # A tool that works is what its framework waits for: only when nobody is quiet is that over.
    at_work = all if state.phase == "waiting_tool" else any
    busy = at_work(process.quiet_since is None for process in processes.values())
    busy_since = (state.at if state.busy_since is None else state.busy_since) if busy else None
    seen = replace(state, at=reading.at, processes=processes, busy_since=busy_since)
    if reading.frozen:
        return _advance_frozen(seen)
    if state.frozen:
        thawed = replace(seen, frozen=False, processes=_awake(seen.processes, reading.at))
        return _enter(thawed, "running", reading.at, "seen") if state.phase in WAITS else thawed
    return _advance_seen(seen, back=not state.processes)


def apply_hint(state: PhaseState, hint: Hint) -> PhaseState:
    """
    Go on with what the sandbox said.

    Only who waits can be about to go on: from anybody else `resuming` changes nothing.  A hint that
    names the phase it is in already, or says which kind of wait a seen one is, goes on
    with that phase; its expected length counts from the hint.
    """
    if hint.phase == "resuming" and state.phase not in (*WAITS, "resuming"):
        return state
    at = max(hint.at, state.since)
    state = replace(state, processes=_told(state.processes, hint.phase, at))
    same = hint.phase == state.phase
    refines = state.source == "seen" and state.phase in WAITS and hint.phase in WAITS
    if same or refines:
        expected = None if hint.expect_s is None else at - state.since + hint.expect_s
        return replace(state, phase=hint.phase, source="hint", expected_s=expected)
    return _enter(state, hint.phase, at, "hint", hint.expect_s)


def _told(
    processes: Mapping[int, ProcessState], phase: str, at: float
) -> Mapping[int, ProcessState]:
    """
    The processes after a hint: what they did before it says nothing of what they do now.

    A tool's wait is different: the tool works, and which process it is was not said.
    """
    if phase in ("waiting_model", "waiting_user"):
        return {
            pid: replace(
                process,
                quiet_since=at if process.quiet_since is None else process.quiet_since,
                worked=(False,),
            )
            for pid, process in processes.items()
        }
    if phase in AWAKE:
        return _awake(processes, at)
    return processes


def _awake(processes: Mapping[int, ProcessState], at: float) -> Mapping[int, ProcessState]:
    """All of them are about to work: however long they were quiet, they are not any more."""
    return {
        pid: replace(process, quiet_since=None, worked=(), busy_until=at)
        for pid, process in processes.items()
    }


def expected_rest_s(state: PhaseState, now: float) -> float:
    """
    Seconds that the phase is expected to go on.

    What the sandbox announced; else the low median of how long the phases of this kind that lasted
    longer than this one has went on from there, where one more observation is that it goes on for
    as long as it has outlasted the longest of the shorter ones.  Without a history that is as long
    as it has lasted, the usual estimate for waits without a typical length.  An announced wait
    that is over goes on for as long as it is overdue.
    """
    age = max(now - state.since, 0.0)
    if state.expected_s is not None:
        return abs(state.expected_s - age)
    durations = state.history.of(state.phase)
    outlasted = max((duration for duration in durations if duration <= age), default=0.0)
    rests = [duration - age for duration in durations if duration > age]
    return median_low([*rests, age - outlasted])


def notice_s(state: PhaseState) -> float:
    """Seconds before a sandbox goes on that it can be counted on to say so; 0 if it does not."""
    return counted_on_s(min(state.history.of("resuming")[-_NOTICES:], default=0.0))


def counted_on_s(notice_s: float) -> float:
    """Of a notice, what can be counted on."""
    return _NOTICE_SHARE * notice_s


def quiet_processes(state: PhaseState, now: float, after_s: float) -> set[int]:
    """Processes that wait since `after_s` at least, though others of the sandbox may work."""
    return {pid for pid, since in state.quiet_since.items() if now - since >= after_s}


def _look(
    state: PhaseState, process: ProcessReading, reading: Reading, *, told: bool
) -> ProcessState:
    """
    One process after one more look.

    Its tick is learned only while somebody tells that all of the sandbox waits (`told`): what works
    all the time at 0.2 cores must not be taken for a tick.
    """
    before = state.processes.get(process.pid) or ProcessState(None, 0.0, (), state.at)
    level = min(max(2 * before.tick_cores, _BUSY_CORES), _BUSY_CORES_MAX)
    hard = process.cpu_cores >= level
    many_faults = process.faults >= _FAULTS_PER_S * (reading.at - state.at)
    worked = (*before.worked, process.threads_running > 0 or many_faults)[-_LOOKS:]
    busy_until = reading.at if hard else before.busy_until
    quiet = not hard and 2 * sum(worked) <= len(worked)
    tick = before.tick_cores
    if told and process.cpu_cores < _BUSY_CORES_MAX:
        tick += _TICK_WEIGHT * (process.cpu_cores - tick)
    if reading.frozen:
        since = reading.at if before.quiet_since is None else before.quiet_since
        return ProcessState(since, before.tick_cores, (), busy_until)
    if not quiet:
        return ProcessState(None, tick, worked, busy_until)
    since = busy_until if before.quiet_since is None else before.quiet_since
    return ProcessState(since, tick, worked, busy_until)


def _advance_frozen(state: PhaseState) -> PhaseState:
    """Nobody who is frozen wakes by himself: as if it waited for a person, unless it said why."""
    since = state.at if not state.frozen else state.since
    frozen = replace(state, frozen=True)
    if state.phase in WAITS or state.phase in ("finishing", "done"):
        if state.source == "seen" and state.phase in WAITS:
            return replace(frozen, phase="waiting_user", source="frozen")
        return frozen
    # A hint that a frozen sandbox is to run comes just before it is thawed.
    if state.frozen and state.source == "hint" and state.at - since < _EVIDENCE_S:
        return frozen
    return _enter(frozen, "waiting_user", since, "frozen")


def _advance_seen(state: PhaseState, *, back: bool) -> PhaseState:
    """The transitions that looks alone make; `back` if there was no process before."""
    if state.phase == "finishing":
        return state
    if state.phase == "done":
        revived = state.source == "seen" and back
        return _enter(state, "running", state.at, "seen") if revived else state
    if state.phase in WAITS or state.phase == "resuming":
        return _advance_wait(state) if state.phase in WAITS else _advance_resuming(state)
    if state.busy_since is None:
        quiet_since = max(state.since, *state.quiet_since.values())
        patience = _EVIDENCE_S if state.source == "hint" else _SETTLE_S
        if state.at - quiet_since >= patience:
            return _enter(state, "waiting_model", quiet_since, "seen")
    elif state.phase == "starting" and state.at - state.since >= _STARTING_S_MAX:
        return _enter(state, "running", state.at, "seen")
    return state


def _advance_wait(state: PhaseState) -> PhaseState:
    age = state.at - state.since
    if state.busy_since is None:
        unknown = state.source == "seen" and state.phase == "waiting_model"
        if unknown and age > _user_after_s(state.history):
            return replace(state, phase="waiting_user")
        return state
    busy_since = max(state.busy_since, state.since)
    overdue = state.expected_s is not None and age >= state.expected_s
    if state.source == "hint" and not overdue and state.at - busy_since <= _EVIDENCE_S:
        return state
    return _enter(state, "running", busy_since, "seen")


def _advance_resuming(state: PhaseState) -> PhaseState:
    """It goes on as soon as it works; if it does not come to that, it waits after all."""
    if state.busy_since is not None:
        return _enter(state, "running", max(state.busy_since, state.since), "seen")
    due_s = _RESUMING_S if state.expected_s is None else state.expected_s
    if state.at - state.since > due_s + _EVIDENCE_S:
        return _enter(state, "waiting_model", state.at, "seen")
    return state


def _user_after_s(history: WaitHistory) -> float:
    answers = history.of("waiting_model")
    if len(answers) < _HISTORY_MIN:
        return _USER_AFTER_S
    low, high = _USER_AFTER_S_RANGE
    return min(max(2 * max(answers), low), high)


def _enter(
    state: PhaseState, phase: str, since: float, source: Source, expected_s: float | None = None
) -> PhaseState:
    """Begin a phase, and remember how long the one before took, and a wake without notice."""
    duration = since - state.since
    history = state.history.with_duration(state.phase, duration) if duration > 0 else state.history
    if phase == "running" and state.phase in WAITS:
        history = history.with_duration("resuming", 0.0)
    return replace(
        state, phase=phase, since=since, source=source, expected_s=expected_s, history=history
    )

"""
One simulated host, from its first sandbox to its last turn.

        starts ──► thinks ──► waits for memory ──► comes home ──► recalls ──► works ──┐
                     ^        └──────────────── wake ────────────────┘                │
                     │        └──────────────────────── turn ─────────────────────────┤
                     └────────────────────────────────────────────────────────────────┘

A wake that is known before the answer is there begins then, and the turn with the answer.
Sandboxes are started one after the other, as many at once as there are cores; when all are up they
take turns, as in `agentzip bench fanout`.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from statistics import fmean

from agentzip.bench.fanout import think
from agentzip.fleet.rules import Rules
from agentzip.policy import planner
from agentzip.policy.planner import Costs
from agentzip.policy.prices import PAGE_BYTES
from agentzip.simulation.memory import FLOOR_BYTES, Admission, Book
from agentzip.simulation.pages import Pages
from agentzip.simulation.processors import Job, Processors
from agentzip.simulation.profiles import Profile, Quantiles, Return
from agentzip.simulation.schedule import TICK_S, AtOnce, Planned, Surroundings

__all__ = ["HostRun", "HostShape", "Play", "simulate_host"]

_WAKES_AT_ONCE = 4
"""Sandboxes that the daemon brings home at the same time."""

_STUCK_S = 120.0
"""Nothing at all happened for so long, and somebody waits for memory: there is none to come."""

_STORM_AFTER_TURNS = 1.5
"""A storm comes when the model has thought so often on average: every sandbox has learned then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShape:
    """A host."""

    memory_bytes: int
    cores: int
    other_bytes: int = 0
    """Used by others all the time, the kernel among them."""
    others_busy: float = 0.0
    """Share of the processors that others keep busy: the planner sees it.  What it makes slower was
    slower when it was measured."""
    pool_bytes_max: int = 0
    """`pool.max_size`; 0 is half of the memory."""
    watermarks: planner.Watermarks = field(default_factory=planner.Watermarks)
    start_share: float = 1.0
    """Sandboxes are started as long as no more than this share of the memory is used by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What the sandboxes do."""

    turns: int
    think_s: float
    """Mean time that the model takes; lognormal."""
    notice_s: float = 0.0
    """Of it, how long before its end that is known."""
    seed: int
    storm_share: float = 0.0
    """Of the sandboxes, those that are woken at one moment in the middle."""
    latency_target_s: float | None = None
    """`policy.latency_target`; None is that of the profile."""
    ends_when_short: bool = False
    """The simulation is over with the first wake that has to wait for memory."""


@dataclass(slots=True, kw_only=True)
class HostRun:
    """What one host did: readings, not yet figures."""

    mode: str
    sandboxes: int
    started: int = 0
    finished: int = 0
    turns_s: list[float] = field(default_factory=list)
    wakes_s: list[float] = field(default_factory=list)
    storm_wakes_s: list[float] = field(default_factory=list)
    tasks_s: list[float] = field(default_factory=list)
    memory_wait_s: float = 0.0
    """Longest that a wake waited for memory."""
    mean_bytes: float = 0.0
    """Until the first sandbox has finished, what others use left out; so all below."""
    pool_bytes: float = 0.0
    """Mean over moments at which a turn ended, a second apart at least."""
    peak_bytes: float = 0.0
    """While turns were taken."""
    most_bytes: float = 0.0
    """The starts included."""
    above_bytes: float = 0.0
    """More than the host has; only mode none can."""
    own_cpu_s: float = 0.0
    """AgentZip's, while turns were taken."""
    wall_s: float = 0.0
    refaults: int = 0
    """Pages that came home by faults."""
    stuck: str = ""
    """Why it was ended early; empty if it was not."""


@dataclass(slots=True, eq=False)
class _Sandbox:
    name: str
    instance: int
    pages: Pages
    waiting: bool = False
    turn: int = 0
    answer: int = 0
    """Which of its answers counts: an earlier wake makes the one that was to come void."""
    answered_at: float = 0.0
    began_at: float = 0.0
    in_storm: bool = False
    answered: bool = True
    """The answer is there, and not only known to come."""
    home: bool = True
    """What its turn needs is home."""
    faulted: int = 0
    """Pages that this turn brings home by faults."""
    job: Job | None = None
    spent_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        """Processor seconds so far."""
        job = self.job
        return self.spent_s + (job.total_s - job.work_s if job is not None else 0.0)

    @property
    def working(self) -> bool:
        """Whether it takes a turn."""
        return self.job is not None


def simulate_host(shape: HostShape, play: Play, profiles: Sequence[Profile]) -> HostRun:
    """
    Simulate one host.

    Args:
        shape: The host.
        play: What the sandboxes do.
        profiles: One for each sandbox, all of one mode.
    """
    return _Host(shape, play, profiles).run()


class _Host:
    def __init__(self, shape: HostShape, play: Play, profiles: Sequence[Profile]) -> None:
        self._shape, self._play = shape, play
        self._mode = profiles[0].mode
        self._processors = Processors(shape.cores)
        self._book = Book(shape.memory_bytes, shape.other_bytes)
        self._admission = Admission(self._book)
        self._sandboxes = [
            _Sandbox(f"sandbox-{number:05}", number, Pages(profile))
            for number, profile in enumerate(profiles)
        ]
        self._run = HostRun(mode=self._mode, sandboxes=len(profiles))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._to_start = list(reversed(self._sandboxes))
        self._starting = 0
        self._workloads: set[str] = set()
        self._homeward: deque[tuple[_Sandbox, int]] = deque()
        self._coming_home = 0
        self._left = len(profiles)
        self._active_at = 0.0
        """When something happened last."""
        self._playing_at = -1.0
        self._own_s_before = 0.0
        self._pools: list[float] = []
        self._pool_at = 0.0
        self._schedule = self._make_schedule(profiles[0].latency_target_s)
        # What wakes must leave to the host, starts must leave as well.
        self._start_limit = shape.start_share * (shape.memory_bytes - FLOOR_BYTES)
        if self._mode != "none":
            self._book.set("overhead", max(one.overhead_bytes for one in profiles), 0.0)

    def run(self) -> HostRun:
        """Everything until the last turn, or until nothing can go on."""
        self._start_more()
        if isinstance(self._schedule, Planned):
            self._every_second()
        while self._left and not self._run.stuck:
            at = min(self._processors.next_at(), self._events[0][0] if self._events else inf)
            if at == inf:
                self._run.stuck = self._why_stuck()
                break
            for job in self._processors.advance(at):
                job.done()
            while self._events and self._events[0][0] <= at:
                heapq.heappop(self._events)[2]()
            self._make_room()
        return self._figures()

    # ── the frame ─────────────────────────────────────────────────────────────────────────────
    def _make_schedule(self, latency_target_s: float) -> AtOnce | Planned:
        around = Surroundings(self._processors, self._changed, self._at, self._planned_host)
        if self._mode != "full":
            return AtOnce(around)
        target_s = self._play.latency_target_s
        rules = Rules(
            planning=planner.Rules(watermarks=self._shape.watermarks),
            latency_target_s=latency_target_s if target_s is None else target_s,
        )
        return Planned(around, rules)

    def _planned_host(self, idle_share: float) -> planner.Host:
        shape = self._shape
        return planner.Host(
            memory_bytes=shape.memory_bytes,
            available_bytes=int(self._book.free_bytes),
            pressure=0.0,
            cores=shape.cores,
            cpu_idle_share=max(idle_share - shape.others_busy, 0.0),
            pool_bytes=int(self._pool_bytes()),
            pool_bytes_max=shape.pool_bytes_max or shape.memory_bytes // 2,
        )

    def _pool_bytes(self) -> float:
        return sum(one.pages.pool_bytes for one in self._sandboxes)

    @property
    def _now(self) -> float:
        return self._processors.now

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(when, self._now), next(self._order), what))

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        self._at(self._now + seconds, what)

    def _every_second(self) -> None:
        assert isinstance(self._schedule, Planned)
        self._schedule.tick(self._now)
        short = len(self._admission) or (self._to_start and not self._starting)
        if short and self._now - self._active_at > _STUCK_S:
            self._run.stuck = self._why_stuck()
        self._after(TICK_S, self._every_second)

    def _why_stuck(self) -> str:
        unstarted = len(self._to_start)
        return (
            f"memory is short for good: {unstarted} sandboxes cannot start, "
            f"{len(self._admission)} cannot wake"
        )

    def _changed(self, sandbox: object) -> None:
        """Book the memory of a sandbox as it is now."""
        assert isinstance(sandbox, _Sandbox)
        pages = sandbox.pages
        self._book.set(sandbox, pages.resident_bytes + pages.books_bytes, self._now)
        self._active_at = self._now

    def _make_room(self) -> None:
        """Whoever waits for memory may have some now: wakes first."""
        self._admission.look()
        self._start_more()

    # ── starts ────────────────────────────────────────────────────────────────────────────────
    def _start_more(self) -> None:
        while self._to_start and self._starting < self._shape.cores and not len(self._admission):
            pages = self._to_start[-1].pages
            profile = pages.profile
            shared = 0 if profile.workload in self._workloads else profile.shared_bytes
            size = profile.whole_pages * PAGE_BYTES + profile.table_bytes + shared
            if self._mode != "none" and self._book.used_bytes + size > self._start_limit:
                return
            sandbox = self._to_start.pop()
            self._starting += 1
            self._run.started += 1
            pages.up = True
            self._workloads.add(profile.workload)
            self._book.set(("shared", profile.workload), profile.shared_bytes, self._now)
            self._changed(sandbox)
            self._processors.add(Job(profile.start_s, partial(self._is_up, sandbox)))

    def _is_up(self, sandbox: _Sandbox) -> None:
        self._starting -= 1
        self._schedule.found(sandbox, self._now)
        self._wait(sandbox)
        if not self._to_start and not self._starting:
            self._begin_play()

    def _begin_play(self) -> None:
        self._playing_at = self._now
        self._book.begin(self._now)
        self._own_s_before = self._processors.own_s
        for sandbox in self._sandboxes:
            offset = think.offset_s(self._play.seed, self._play.think_s, sandbox.instance)
            self._think(sandbox, offset)
        if self._play.storm_share > 0:
            self._after(self._play.think_s * _STORM_AFTER_TURNS, self._storm)

    # ── waits and turns ───────────────────────────────────────────────────────────────────────
    def _wait(self, sandbox: _Sandbox) -> None:
        sandbox.waiting, sandbox.answered = True, False
        self._schedule.idle(sandbox, self._now, self._play.think_s)

    def _think(self, sandbox: _Sandbox, seconds: float) -> None:
        sandbox.answer += 1
        number = sandbox.answer
        notice_s = min(self._play.notice_s, seconds)
        if notice_s:
            self._after(seconds - notice_s, partial(self._resume, sandbox, number))
        self._after(seconds, partial(self._answer, sandbox, number))

    def _resume(self, sandbox: _Sandbox, number: int) -> None:
        """The model's answer begins to come."""
        if number == sandbox.answer and sandbox.waiting:
            self._schedule.resume(sandbox, self._now)
            self._come_home(sandbox)

    def _answer(self, sandbox: _Sandbox, number: int) -> None:
        """The model's answer is there."""
        if number != sandbox.answer:
            return
        sandbox.answered, sandbox.answered_at = True, self._now
        if not sandbox.turn:
            sandbox.began_at = self._now
        self._schedule.wake(sandbox, self._now)
        if sandbox.waiting:
            self._come_home(sandbox)
        elif sandbox.home:
            self._recall(sandbox)

    def _come_home(self, sandbox: _Sandbox) -> None:
        """Have what its turn needs brought home as soon as there is memory for it."""
        self._active_at = self._now
        sandbox.waiting = sandbox.home = False
        if self._mode == "none":
            self._is_home(sandbox)
            return
        needed = sum(sandbox.pages.needs())
        self._admission.ask(sandbox.name, needed, self._now, partial(self._admitted, sandbox))
        if self._play.ends_when_short and len(self._admission):
            self._run.stuck = "a wake has to wait for memory"

    def _admitted(self, sandbox: _Sandbox) -> None:
        """There is memory for what its turn needs: it is taken now."""
        waited_s = self._now - sandbox.answered_at if sandbox.answered else 0.0
        self._run.memory_wait_s = max(self._run.memory_wait_s, waited_s)
        prefetched, sandbox.faulted = sandbox.pages.needs()
        sandbox.pages.come_home(prefetched, sandbox.faulted)
        self._run.refaults += sandbox.faulted
        self._processors.own_s += sandbox.faulted * Costs().restore_fault_s
        self._changed(sandbox)
        self._homeward.append((sandbox, prefetched))
        self._next_home()

    def _next_home(self) -> None:
        while self._homeward and self._coming_home < _WAKES_AT_ONCE:
            sandbox, pages = self._homeward.popleft()
            self._coming_home += 1
            profile = sandbox.pages.profile
            work_s = profile.home_fixed_s + pages * profile.restore_s
            self._processors.add(Job(work_s, partial(self._home, sandbox), own=True))

    def _home(self, sandbox: _Sandbox) -> None:
        self._coming_home -= 1
        self._schedule.woken(sandbox, self._now)
        self._next_home()
        self._is_home(sandbox)

    def _is_home(self, sandbox: _Sandbox) -> None:
        sandbox.home = True
        if sandbox.answered:
            self._recall(sandbox)

    def _recall(self, sandbox: _Sandbox) -> None:
        self._work(sandbox, "recall", self._recalled)

    def _recalled(self, sandbox: _Sandbox) -> None:
        wake_s = self._now - sandbox.answered_at
        self._run.wakes_s.append(wake_s)
        if sandbox.in_storm:
            sandbox.in_storm = False
            self._run.storm_wakes_s.append(wake_s)
        self._work(sandbox, "tool", self._turn_over)

    def _work(self, sandbox: _Sandbox, part: str, then: Callable[[_Sandbox], None]) -> None:
        """Run one part of a turn: as long as without AgentZip, and longer by what must come."""
        profile = sandbox.pages.profile
        first = not sandbox.turn
        paged = profile.first if first else profile.later
        plain = profile.plain_first if first else profile.plain_later
        chance = think.chance(self._play.seed, part, sandbox.instance, sandbox.turn).random()
        plain_s = _times(plain, part).at(chance)
        if paged.faulted_pages:
            share = sandbox.faulted / paged.faulted_pages
            plain_s += share * max(_times(paged, part).at(chance) - plain_s, 0.0)

        def over() -> None:
            sandbox.spent_s += job.total_s
            sandbox.job = None
            then(sandbox)

        cores = profile.turn_cores
        job = Job(plain_s * cores, over, cores=cores)
        sandbox.job = self._processors.add(job)

    def _turn_over(self, sandbox: _Sandbox) -> None:
        self._active_at = self._now
        self._run.turns_s.append(self._now - sandbox.answered_at)
        if self._now - self._pool_at >= TICK_S:
            self._pools.append(self._pool_bytes())
            self._pool_at = self._now
        sandbox.pages.turn_over()
        number, sandbox.turn = sandbox.turn, sandbox.turn + 1
        self._wait(sandbox)
        if sandbox.turn < self._play.turns:
            play = self._play
            self._think(sandbox, think.think_s(play.seed, play.think_s, sandbox.instance, number))
            return
        self._run.tasks_s.append(self._now - sandbox.began_at)
        self._run.finished += 1
        self._left -= 1
        if self._run.finished == 1:
            self._run.mean_bytes = self._book.mean_bytes(self._now)

    def _storm(self) -> None:
        """Wake a share of the sandboxes, wherever they are in their waits."""
        asleep = [one for one in self._sandboxes if one.waiting and one.turn < self._play.turns]
        wanted = round(self._play.storm_share * len(self._sandboxes))
        for sandbox in asleep[:wanted]:
            sandbox.answer += 1
            sandbox.in_storm = True
            self._answer(sandbox, sandbox.answer)

    def _figures(self) -> HostRun:
        run, book, shape = self._run, self._book, self._shape
        run.peak_bytes = book.peak_bytes - shape.other_bytes
        run.most_bytes = book.most_bytes - shape.other_bytes
        run.above_bytes = max(book.most_bytes - shape.memory_bytes, 0.0)
        run.mean_bytes = run.mean_bytes or book.mean_bytes(self._now)
        run.pool_bytes = fmean(self._pools) if self._pools else 0.0
        run.wall_s = self._now - max(self._playing_at, 0.0)
        upkeep = sum(sandbox.pages.profile.upkeep_cores for sandbox in self._sandboxes)
        run.own_cpu_s = self._processors.own_s - self._own_s_before + upkeep * run.wall_s
        return run


def _times(turn: Return, part: str) -> Quantiles:
    return turn.recall_s if part == "recall" else turn.tool_s

"""
Which pages leave, and when: at once, or when the daemon's planner says so.

`AtOnce` is what the bench's modes `encode` and `prefetch` do.  `Planned` is the daemon's lifecycle
without its threads: it looks, asks `policy.planner`, and does what the plan says, one page out
after the other.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from agentzip.fleet.life import Life
from agentzip.fleet.rules import Rules
from agentzip.policy import breakers, phases, planner, prices
from agentzip.simulation.pages import PID, Leaving, Pages, view_of
from agentzip.simulation.processors import BACKGROUND, Job, Processors

__all__ = ["TICK_S", "AtOnce", "Planned", "Surroundings"]

TICK_S = 1.0
"""As in the daemon."""

_HURRY_S, _HURRY_S_MIN = 5e-4, 0.1
"""A tick takes about this long for each sandbox, and is counted as this at least, or a simulation
would be nearly as slow as what it simulates: what asks for a tick meanwhile shares the next one."""

_PART_PAGES = 16_384
"""What leaves in one go where nobody plans, as in the bench: 64 MiB."""

_QUIET_S = 2.0
"""How long a sandbox must have been quiet without a hint, as in the daemon."""

_PAGES_MIN = 64
"""Fewer pages that could leave are not worth stopping a thread for, as in the daemon."""

_STORM_S_MIN = 0.5
"""Refaults are counted over this time at least, as in the daemon."""


class Member(Protocol):
    """A sandbox, as a schedule needs it."""

    name: str
    pages: Pages
    waiting: bool
    """For the model."""

    @property
    def cpu_s(self) -> float:
        """Processor seconds that it took so far."""

    @property
    def working(self) -> bool:
        """Whether it takes a turn."""


@dataclass(slots=True)
class Surroundings:
    """What a schedule works with."""

    processors: Processors
    moved: Callable[[Member], None]
    """Pages of a sandbox have left: to be called whenever its memory changed."""
    at: Callable[[float, Callable[[], None]], None]
    """Have something called at a time."""
    host: Callable[[float], planner.Host]
    """The host as it is now, with this share of the processors idle."""


class _PageOut:
    """One page out under way; the processors work for it until it is done or dropped."""

    def __init__(
        self,
        around: Surroundings,
        member: Member,
        leaving: Leaving,
        done: Callable[["_PageOut", int, bool], None],
    ) -> None:
        self.member, self.leaving = member, leaving
        self._around, self._done = around, done
        profile = member.pages.profile
        again = leaving.pages - leaving.new
        work_s = leaving.new * profile.encode_s + again * profile.again_s
        self.job = around.processors.add(
            Job(work_s, self._whole, cores=profile.leave_cores, weight=BACKGROUND, own=True)
        )

    def interrupt(self) -> None:
        """The sandbox goes on: what has left by now is out, the rest stays."""
        self._around.processors.drop(self.job)
        self._end(self.job.share_done, interrupted=True)

    def _whole(self) -> None:
        self._end(1.0, interrupted=False)

    def _end(self, share: float, *, interrupted: bool) -> None:
        moved = self.member.pages.left(self.leaving, share)
        self._around.moved(self.member)
        self._done(self, moved, interrupted)


class AtOnce:
    """
    Everything that may leave does so as soon as its sandbox waits, as many at once as cores.

    Args:
        around: What it works with.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._queue: deque[Member] = deque()
        self._at_work: dict[str, _PageOut] = {}

    def found(self, member: Member, now: float) -> None:
        """A sandbox is up."""

    def idle(self, member: Member, _now: float, _expect_s: float) -> None:
        """It begins to wait."""
        self._queue.append(member)
        self._next()

    def resume(self, member: Member, now: float) -> None:
        """It is about to go on."""
        self.wake(member, now)

    def wake(self, member: Member, _now: float) -> None:
        """It goes on."""
        if member in self._queue:
            self._queue.remove(member)
        if (page_out := self._at_work.get(member.name)) is not None:
            page_out.interrupt()

    def woken(self, member: Member, now: float) -> None:
        """Its wake is over."""

    @property
    def busy(self) -> bool:
        """Whether something leaves, or is about to."""
        return bool(self._queue or self._at_work)

    def _next(self) -> None:
        while self._queue and len(self._at_work) < self._around.processors.cores:
            member = self._queue.popleft()
            leaving = member.pages.leave(_PART_PAGES, 0)
            if leaving.pages:
                self._at_work[member.name] = _PageOut(self._around, member, leaving, self._done)

    def _done(self, page_out: _PageOut, moved: int, interrupted: bool) -> None:
        member = page_out.member
        del self._at_work[member.name]
        if moved and not interrupted and member.waiting:
            self._queue.appendleft(member)
        self._next()


class Planned:
    """
    The daemon's ticks.

    Args:
        around: What it works with.
        rules: What an operator set.
    """

    def __init__(self, around: Surroundings, rules: Rules) -> None:
        self._around, self._rules = around, rules
        self._members: dict[str, Member] = {}
        self._lives: dict[str, Life] = {}
        self._state = planner.PlannerState()
        self._storm = breakers.Storm()
        self._stormed_at, self._refaults, self._refaults_before = 0.0, 0, 0
        self._ticked_at, self._due_at = 0.0, -1.0
        self._others_s = 0.0
        self._processor_price = breakers.Thresholds().processor_price
        self._orders: deque[planner.PageOut] = deque()
        self._order: planner.PageOut | None = None
        self._page_out: _PageOut | None = None
        self._moved = 0

    @property
    def busy(self) -> bool:
        """Whether something leaves."""
        return self._page_out is not None

    def found(self, member: Member, now: float) -> None:
        """A sandbox is up: it is looked after from here on."""
        self._members[member.name] = member
        self._lives[member.name] = view_of(
            member.name, member.pages, self._rules.latency_target_s, now
        )

    def idle(self, member: Member, now: float, expect_s: float) -> None:
        """It says that it waits for the model."""
        self._hint(member, "waiting_model", now, expect_s)
        self._hurry(now)

    def resume(self, member: Member, now: float) -> None:
        """It says that it is about to go on."""
        self._goes_on(member, "resuming", now)

    def wake(self, member: Member, now: float) -> None:
        """It says that it goes on."""
        self._goes_on(member, "running", now)

    def _goes_on(self, member: Member, phase: str, now: float) -> None:
        self._hint(member, phase, now, None)
        self._lives[member.name].announced = True
        if self._page_out is not None and self._page_out.member is member:
            self._page_out.interrupt()

    def woken(self, member: Member, now: float) -> None:
        """Its wake is over: did the page outs of the wait pay?"""
        self._wait_ended(self._lives[member.name], now)

    def tick(self, now: float) -> None:
        """Look at everything, plan, and begin to act."""
        if now < self._due_at:
            return
        self._due_at = -1.0
        self._look(now)
        self._follow_storm(now)
        idle_share = self._idle_share(now)
        if self._page_out is None:
            self._orders.extend(self._plan(now, idle_share).page_outs)
            self._moved = 0
            self._next()

    def _hint(self, member: Member, phase: str, now: float, expect_s: float | None) -> None:
        life = self._lives[member.name]
        life.state = phases.apply_hint(life.state, phases.Hint(phase, now, expect_s))
        activity = member.pages.activity(member.cpu_s, running=member.working)
        life.processes[PID].measure_anew(activity, now)

    def _hurry(self, now: float) -> None:
        """Let the next tick be soon; several hints share it."""
        if self._due_at < 0:
            self._due_at = now + max(_HURRY_S * len(self._lives), _HURRY_S_MIN)
            self._around.at(self._due_at, lambda: self.tick(self._around.processors.now))

    def _look(self, now: float) -> None:
        warm_s = self._rules.thresholds.warm_s
        for name, life in self._lives.items():
            member, process = self._members[name], life.processes[PID]
            process.count_faults(member.pages.space(), now, warm_s)
            if not life.due(now):
                continue
            life.looked_at = now
            process.look(member.pages.activity(member.cpu_s, running=member.working), now)
            was_waiting = life.waiting
            life.state = phases.advance(life.state, life.reading(now))
            life.judge(now)
            self._refaults += process.faults_new
            process.faults_new = 0
            if was_waiting and not life.waiting:
                self._wait_ended(life, now)

    def _wait_ended(self, life: Life, now: float) -> None:
        limits = replace(self._rules.breaker, processor_price=self._processor_price)
        cycle = life.processes[PID].wait_over(now)
        if cycle is not None:
            life.breaker = breakers.after_cycle(life.breaker, cycle, limits)

    def _follow_storm(self, now: float) -> None:
        elapsed_s = now - self._stormed_at
        if elapsed_s >= _STORM_S_MIN:
            rate = (self._refaults - self._refaults_before) / elapsed_s
            self._refaults_before, self._stormed_at = self._refaults, now
            cores = self._around.processors.cores
            self._storm = breakers.after_tick(self._storm, rate, cores, breakers.StormRates())

    def _idle_share(self, now: float) -> float:
        """Of the processors since the last tick; what AgentZip takes is no sign of need."""
        elapsed_s = now - self._ticked_at
        if elapsed_s <= 0:
            return 1.0
        processors = self._around.processors
        busy = (processors.others_s - self._others_s) / (elapsed_s * processors.cores)
        self._ticked_at, self._others_s = now, processors.others_s
        return min(max(1.0 - busy, 0.0), 1.0)

    def _plan(self, now: float, idle_share: float) -> planner.Plan:
        host = self._around.host(idle_share)
        planning = self._rules.planning
        worth = prices.Prices.of(host, planning.watermarks, reclaiming=self._state.reclaiming)
        self._processor_price = worth.processor
        states = []
        # As in the daemon: while memory costs nothing nobody is asked.
        for name, life in self._lives.items() if worth.memory > 0 else ():
            process = life.processes[PID]
            after_s = 0.0 if life.state.source == "hint" else _QUIET_S
            if PID not in phases.quiet_processes(life.state, now, after_s):
                continue
            if process.resident_movable < _PAGES_MIN:
                continue
            pages = self._members[name].pages
            process.expected_pages, process.expected_out = pages.learned, pages.learned_out
            states.append(life.planned([PID], now, self._rules.thresholds))
        pages_max = max(1, int(planning.pages_per_tick_max * self._storm.factor))
        plan = planner.plan(
            states, host, replace(planning, pages_per_tick_max=pages_max), self._state
        )
        self._state = plan.state
        return plan

    def _next(self) -> None:
        """Begin the next page out of the plan; what was planned for a sandbox that woke is void."""
        while self._orders:
            order = self._orders.popleft()
            member, life = self._members[order.sandbox], self._lives[order.sandbox]
            leaving = member.pages.leave(order.pages, order.keep_pages)
            if life.may_leave(PID) and leaving.pages:
                self._order = order
                self._page_out = _PageOut(self._around, member, leaving, self._done)
                return
        if self._moved:
            self._hurry(self._around.processors.now)

    def _done(self, page_out: _PageOut, moved: int, interrupted: bool) -> None:
        order, member = self._order, page_out.member
        assert order is not None
        self._order = self._page_out = None
        now = self._around.processors.now
        process = self._lives[member.name].processes[PID]
        cpu_s = page_out.job.total_s - page_out.job.work_s
        new = min(page_out.leaving.new, moved)
        report = member.pages.report(moved, new, cpu_s, interrupted=interrupted)
        whole = not interrupted and moved < order.pages
        after = member.pages.activity(member.cpu_s, running=member.working)
        process.left(now, report, after, order.keep_pages, whole=whole)
        process.space = member.pages.space()
        self._moved += moved
        self._next()

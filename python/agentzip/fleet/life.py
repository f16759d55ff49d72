"""
What is remembered of one sandbox between two ticks, and how it is shown to the planner.

No engine call and no file here: facts come in, `policy` values and `SandboxStatus` go out.
"""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from agentzip import model
from agentzip.accounting import percentile
from agentzip.fleet.ranges import PAGE_BYTES, Ranges, pages_in
from agentzip.fleet.registry import Member, Sandbox
from agentzip.host.activity import TICKS_PER_SECOND, Activity
from agentzip.policy import breakers, phases, planner, prefetch, temperature
from agentzip.sandboxes import WAITS, Decision, SandboxStatus

__all__ = ["Life", "ProcessLife"]

_DECISIONS_KEPT = 64
_WAKES_KEPT = 256
_RESTLESS_RANGES_MAX = 4096
"""Bound of what is kept of the pages that a process touches while it waits."""

_RESTLESS_WAITS = 4
"""Pages that were touched during a wait stay for so many more."""

_RATIO_UNKNOWN = 3.0
"""Expected of pages before any of the process were encoded: the least that `bench encode` shows of
any workload with the default codec, rounded down."""

_RATIO_PAGES_MIN = 1000

_CLEAN_UNKNOWN = 0.75
"""Share of the pages that later page outs of a process need not encode again, before that is known
of it: encoding a page is paid once for several waits."""
_MEASURE_S_MIN = 0.5
"""Processor time is counted in hundredths of a second: over less than this one of them would look
like work."""

_LOOK_S_MIN = 0.5
"""Ticks that follow each other closer are for what a hint or a page out changed: a look at what
processes do would be a glimpse."""

_ASLEEP_S = 5.0
"""A sandbox that waits for so long, and whose processes do nothing at all, sleeps: it is ..."""

_ASLEEP_LOOK_S = 4.5
"""... looked at every fifth tick, and again at every one as soon as a page of it comes back or a
process appears or works.  Looking is most of what the daemon costs on an idle host."""

_LEFT_ALONE_S = 600.0
"""Pages that did not pay are tried again after this time: the sandbox may do something else now."""


@dataclass(slots=True)
class ProcessLife:
    """One process of a sandbox."""

    member: Member
    attached: bool = False
    refused: str = ""
    """Why it is not attached."""
    retry_at: float = 0.0
    activity: Activity | None = None
    measured_from: tuple[float, int] | None = None
    """When the present measurement of its processor time began, and at how many ticks."""
    cpu_cores: float = 0.0
    space: model.SpaceStatus | None = None
    faults_new: int = 0
    """Refaults since the last look of the phases."""
    wakes_kept: int = 0
    """Of its wakes, those that are in its kind's template."""
    touches: tuple[float, ...] = ()
    """When pages of it that were out came back, the last two looks that saw some."""
    stay_pages: int | None = None
    """Resident pages that cannot leave: counted once, then what the last page out left."""
    out_at: float | None = None
    """When the last page out ended."""
    out_since: float = 0.0
    """When the first page out of this wait ended."""
    out_pages: int = 0
    """Pages that left in this wait."""
    out_cpu_s: float = 0.0
    waits_out: int = 0
    """Waits in which pages left, and that are over."""
    expected_pages: int = 0
    """Pages that its next wake is expected to need ..."""
    expected_out: int = 0
    """... and of them those that are out, both ..."""
    expected_at: model.SpaceStatus | None = None
    """... as of this status: asking goes through the whole learned set, so it is asked anew only
    when something came home or left."""
    encoded_pages: int = 0
    """Pages that its page outs have put into the pool, and what they take there."""
    encoded_bytes: int = 0
    back_soon: int = 0
    """Of them, those that came back within the warm threshold."""
    restless_until: dict[tuple[int, int], int] = field(default_factory=dict)
    """What it touched while it waited, and up to which of its waits that stays; oldest first."""

    def look(self, activity: Activity, now: float) -> None:
        """Take in what the process does, and what it did since the measurement began."""
        self.activity = activity
        at, ticks = self.measured_from or (now, activity.cpu_ticks)
        if self.measured_from is None or now - at >= _MEASURE_S_MIN:
            taken = max(0, activity.cpu_ticks - ticks) / TICKS_PER_SECOND
            self.cpu_cores = taken / (now - at) if now > at else 0.0
            self.measured_from = (now, activity.cpu_ticks)

    def measure_anew(self, activity: Activity, now: float) -> None:
        """Forget what it did until now: it says nothing of what it does from here on."""
        self.activity, self.cpu_cores = activity, 0.0
        self.measured_from = (now, activity.cpu_ticks)

    def count_faults(self, space: model.SpaceStatus, now: float, warm_s: float) -> None:
        """Take in what came back since the last look at the engine."""
        # Those of a process that was taken over from another daemon are not news.
        new = max(0, space.faults - self.space.faults) if self.space else 0
        self.space = space
        self.faults_new += new
        if new:
            self.touches = (*self.touches, now)[-2:]
        if self.out_at is not None and now - self.out_at <= warm_s:
            self.back_soon += new

    def left(
        self,
        now: float,
        report: model.PageOutReport,
        after: Activity | None,
        keep_pages: int,
        *,
        whole: bool,
    ) -> None:
        """Take in what a page out did; `after` is a look behind it, `whole` if nothing was left."""
        if not self.out_pages:
            self.out_since, self.out_cpu_s, self.back_soon = now, 0.0, 0
        # As the planner weighed it: what is encoded once is paid for over several waits.
        share = 1.0 if self.waits_out else 1.0 - _CLEAN_UNKNOWN
        self.encoded_pages += report.pages_stored
        self.encoded_bytes += report.bytes_stored
        self.out_at = now
        self.expected_at = None
        self.out_pages += report.pages_moved
        self.out_cpu_s += report.elapsed_us / 1e6 * share
        if after is None:
            return
        # The borrowed thread worked for us, not for the process.
        self.measure_anew(after, now)
        if whole:
            # What is still here could not leave, but for what was told to stay.
            self.stay_pages = max(0, after.rss_pages - keep_pages - pages_in(self.restless))

    def wait_over(self, now: float) -> breakers.Cycle | None:
        """What the page outs of a wait that is over did; None if there were none."""
        if not self.out_pages:
            return None
        cycle = breakers.Cycle(
            waited_s=now - self.out_since,
            pages_out=self.out_pages,
            pages_back_soon=min(self.back_soon, self.out_pages),
            cpu_s=self.out_cpu_s,
        )
        self.out_pages = self.back_soon = 0
        self.waits_out += 1
        # What stays does not come back, so only letting it go shows whether it is still touched.
        self.restless_until = {
            pages: last for pages, last in self.restless_until.items() if last >= self.waits_out
        }
        return cycle

    @property
    def restless(self) -> Ranges:
        """What it touched while it waited: the next page out leaves it."""
        return list(self.restless_until)

    def add_restless(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Remember pages that were touched during a wait; the oldest are forgotten first."""
        for pages in ranges:
            self.restless_until.pop(pages, None)
            self.restless_until[pages] = self.waits_out + _RESTLESS_WAITS
        for pages in self.restless[:-_RESTLESS_RANGES_MAX]:
            del self.restless_until[pages]

    @property
    def asleep(self) -> bool:
        """Whether it did nothing at all when it was looked at last, and no page came back since."""
        seen = self.activity
        return not self.faults_new and seen is not None and not (seen.running or self.cpu_cores)

    @property
    def resident_movable(self) -> int:
        """Resident pages that could leave, as far as is known."""
        if self.activity is None:
            return 0
        return max(0, self.activity.rss_pages - (self.stay_pages or 0))

    def clean_share(self) -> float:
        """Share of the pages that could leave whose copy in the pool is still good."""
        if self.out_at is None or self.space is None or not self.resident_movable:
            return _CLEAN_UNKNOWN
        return min(1.0, self.space.pages_kept / self.resident_movable)

    def ratio(self) -> float:
        """
        Expected bytes of memory for one byte of pool.

        From what was encoded, not from what the pool holds: that has copies of pages at home, too.
        """
        if self.encoded_pages < _RATIO_PAGES_MIN:
            return _RATIO_UNKNOWN
        return self.encoded_pages * PAGE_BYTES / max(self.encoded_bytes, 1)


@dataclass(slots=True)
class Life:
    """One sandbox from its first sight to its end."""

    sandbox: Sandbox
    state: phases.PhaseState
    latency_target_s: float
    breaker: breakers.BreakerState
    processes: dict[int, ProcessLife] = field(default_factory=dict)
    pinned: bool = False
    announced: bool = False
    """Its wakes come with a hint."""
    coming_home: Future[int] | None = None
    """The wake that was begun when it said that it is about to go on; its result is the pages."""
    trimmed: bool = False
    """It was asked in this wait to give memory back."""
    trim_at: float | None = None
    """When it was asked last."""
    left_alone: str = ""
    left_alone_until: float = 0.0
    looked_at: float = 0.0
    """When its processes were looked at last."""
    cpu_s: float = 0.0
    decisions: deque[tuple[float, Decision]] = field(
        default_factory=lambda: deque(maxlen=_DECISIONS_KEPT)
    )
    wakes_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_WAKES_KEPT))

    def take_members(self) -> list[int]:
        """Follow the sandbox's list of processes; returns the pids that it looks after no more."""
        # A scope that is switched off, or memory that cannot be borrowed, has none to look after.
        followed = self.sandbox.members if self.sandbox.enabled else ()
        members = {member.pid: member for member in followed}
        gone = []
        for pid, process in list(self.processes.items()):
            # The same pid with another start time is another process.
            if pid not in members or members[pid].start_time != process.member.start_time:
                del self.processes[pid]
                gone.append(pid)
        for pid, member in members.items():
            self.processes.setdefault(pid, ProcessLife(member))
        return gone

    def judge(self, now: float) -> None:
        """Say whether it is left alone: it cannot be borrowed, or its pages do not pay."""
        pages = sum(process.encoded_pages for process in self.processes.values())
        encoded = sum(process.encoded_bytes for process in self.processes.values())
        ratio = pages * PAGE_BYTES / encoded if encoded else _RATIO_UNKNOWN
        verdict = planner.judge_ratio(ratio, pages)
        if verdict:
            self.left_alone_until = now + _LEFT_ALONE_S
        if self.sandbox.refused or verdict or now >= self.left_alone_until:
            self.left_alone = self.sandbox.refused or verdict

    def due(self, now: float) -> bool:
        """Whether its processes are to be looked at: who sleeps for long is looked at seldom."""
        age, state = now - self.looked_at, self.state
        if age >= _ASLEEP_LOOK_S or age < _LOOK_S_MIN:
            return age >= _ASLEEP_LOOK_S
        asleep = (
            now - state.since >= _ASLEEP_S
            and self.waiting
            and self.sandbox.frozen == state.frozen
            and len(self.processes) == len(state.processes)
        )
        return not asleep or not all(process.asleep for process in self.processes.values())

    @property
    def waiting(self) -> bool:
        """Whether it is in one of the waits."""
        return self.state.phase in WAITS

    def may_leave(self, pid: int) -> bool:
        """Whether pages of a process may still leave, as it was when that was planned."""
        going_on = self.state.phase == "resuming"
        return not self.pinned and not going_on and pid in self.state.quiet_since

    def waits_as_told(self, since: float) -> bool:
        """Whether it waits, and something was decided about that wait not before `since`."""
        told_at = self.decisions[-1][0] if self.decisions else float("-inf")
        return self.waiting and told_at >= max(since, self.state.since)

    def reading(self, now: float) -> phases.Reading:
        """What its processes did since the last tick."""
        looks = tuple(
            phases.ProcessReading(
                pid=pid,
                cpu_cores=process.cpu_cores,
                threads_running=int(process.activity.running) if process.activity else 0,
                faults=process.faults_new,
            )
            for pid, process in self.processes.items()
        )
        return phases.Reading(at=now, processes=looks, frozen=self.sandbox.frozen)

    def part(self, pid: int, now: float, limits: temperature.Thresholds) -> planner.Part:
        """One process, as the planner sees it."""
        process = self.processes[pid]
        movable = process.resident_movable
        restless = min(movable, pages_in(process.restless))
        # What of it is out already is not here to leave.
        out = process.expected_out
        working_set = min(process.expected_pages - out, movable - restless)
        quiet_since = self.state.quiet_since.get(pid, now)
        # What it touched while it worked says nothing of what it touches while it waits.
        touches = [at for at in process.touches if at > quiet_since]
        return planner.Part(
            pid=pid,
            working_set_pages=working_set,
            rest_pages=movable - restless - working_set,
            restless_pages=restless,
            quiet_s=now - quiet_since,
            temperature=temperature.classify(touches, now, limits, self.state.phase),
            clean_share=process.clean_share(),
            ratio=process.ratio(),
            paged_out_s=None if process.out_at is None else now - process.out_at,
            working_set_out=out,
        )

    def planned(
        self, pids: Iterable[int], now: float, limits: temperature.Thresholds
    ) -> planner.SandboxState:
        """The sandbox with those of its processes that could leave."""
        return planner.SandboxState(
            name=self.sandbox.name,
            phase=self.state.phase,
            expected_rest_s=phases.expected_rest_s(self.state, now),
            latency_target_s=self.latency_target_s,
            announced=self.announced,
            notice_s=phases.notice_s(self.state),
            parts=tuple(self.part(pid, now, limits) for pid in pids),
            pages_out=sum(p.space.pages_out for p in self.processes.values() if p.space),
            pinned=self.pinned,
            min_wait_s=self.breaker.min_wait_s,
            left_alone=self.left_alone,
            phase_age_s=now - self.state.since,
        )

    def note(self, now: float, decision: Decision) -> None:
        """Keep a decision for `explain`; to leave a process again only renews the last such one."""
        for position in reversed(range(len(self.decisions))):
            _, known = self.decisions[position]
            if known.pid == decision.pid:
                if known.action == decision.action == "leave":
                    del self.decisions[position]
                break
        self.decisions.append((now, decision))

    def status(self, now: float) -> SandboxStatus:
        """What people are told of it."""
        spaces = [process.space for process in self.processes.values() if process.space]
        hit_rate, waste = prefetch.estimate(
            spared=sum(space.pages_spared for space in spaces),
            spared_touched=sum(space.pages_spared_touched for space in spaces),
            prefetched=sum(space.pages_prefetched for space in spaces),
            missed=sum(space.pages_missed for space in spaces),
        )
        rss = sum(p.activity.rss_pages for p in self.processes.values() if p.activity)
        wakes = list(self.wakes_ms)
        refusals = {p.refused for p in self.processes.values() if p.refused}
        return SandboxStatus(
            name=self.sandbox.name,
            scope=self.sandbox.scope,
            cgroup=self.sandbox.cgroup,
            pids=sorted(pid for pid, process in self.processes.items() if process.attached),
            phase=self.state.phase,
            phase_source=self.state.source,
            phase_age_s=round(now - self.state.since, 3),
            expected_rest_s=round(phases.expected_rest_s(self.state, now), 3),
            rss_bytes=rss * PAGE_BYTES,
            bytes_logical=sum(space.bytes_logical for space in spaces),
            bytes_pool=sum(space.bytes_pool for space in spaces),
            bytes_table=sum(space.bytes_table for space in spaces),
            pages_out=sum(space.pages_out for space in spaces),
            faults=sum(space.faults for space in spaces),
            wakes=sum(space.wakes for space in spaces),
            prefetch_hit_rate=hit_rate,
            prefetch_waste=waste,
            wake_p50_ms=percentile(wakes, 50) if wakes else None,
            wake_p99_ms=percentile(wakes, 99) if wakes else None,
            cpu_s=round(self.cpu_s, 3),
            pinned=self.pinned,
            left_alone=self.left_alone or "; ".join(sorted(refusals)),
            min_wait_s=self.breaker.min_wait_s,
        )

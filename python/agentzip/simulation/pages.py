"""
Where the pages of one simulated sandbox are, and how the daemon sees them.

Pages are numbers here: how many of the learned set and of the rest are out, and how many at home
have a copy in the pool.  The daemon's view is a real `fleet.life.Life`, fed with what `/proc` and
the engine would have told, so that phases, breakers and the planner's input are the daemon's own.
"""

from dataclasses import dataclass

from agentzip import model
from agentzip.fleet.life import Life, ProcessLife
from agentzip.fleet.registry import Member, Sandbox
from agentzip.fleet.scopes import Rule
from agentzip.host.activity import TICKS_PER_SECOND, Activity
from agentzip.policy import breakers, phases
from agentzip.policy.prices import PAGE_BYTES
from agentzip.simulation.profiles import Profile

__all__ = ["PID", "Leaving", "Pages", "view_of"]

PID = 1
"""A simulated sandbox has one process."""

_FOUND_S = 0.1
"""A sandbox is found this long before it is looked at for the first time."""

_RULE = Rule(pattern="simulated", source="config")


@dataclass(frozen=True, slots=True)
class Leaving:
    """Pages on their way out."""

    rest: int
    learned: int
    new: int
    """Of them, those without a copy in the pool."""

    @property
    def pages(self) -> int:
        """All of them."""
        return self.rest + self.learned


@dataclass(slots=True)
class Pages:
    """The pages of one sandbox."""

    profile: Profile
    learned: int = 0
    """Size of the learned set; 0 until the first turn is over."""
    learned_out: int = 0
    rest_out: int = 0
    kept: int = 0
    """At home, with a copy in the pool."""
    up: bool = False
    """The sandbox has started."""
    refaults: int = 0
    wakes: int = 0

    @property
    def out(self) -> int:
        """All that is out."""
        return self.learned_out + self.rest_out

    @property
    def resident(self) -> int:
        """At home, of its own memory."""
        return self.profile.whole_pages - self.out if self.up else 0

    @property
    def resident_bytes(self) -> int:
        """The same in bytes."""
        return self.resident * PAGE_BYTES

    @property
    def books_bytes(self) -> float:
        """What AgentZip holds for it: pool and tables."""
        books = (self.out + self.kept) * self.profile.pool_page_bytes
        return books + (self.profile.table_bytes if self.up else 0)

    @property
    def pool_bytes(self) -> float:
        """The pool alone."""
        return (self.out + self.kept) * self.profile.pool_page_bytes

    def leave(self, pages: int, keep: int) -> Leaving:
        """
        What a page out would take: the rest first, then the learned set but for `keep` of it.

        Args:
            pages: At most.
            keep: Of the resident pages of the learned set, those that stay.
        """
        here = self.profile.movable_pages - self.out
        learned_here = self.learned - self.learned_out
        rest = min(pages, here - learned_here)
        learned = min(pages - rest, max(learned_here - keep, 0))
        clean = min(self.kept, rest + learned)
        return Leaving(rest, learned, rest + learned - clean)

    def left(self, leaving: Leaving, share: float) -> int:
        """Some share of a page out has been done; returns the pages that are out by it."""
        rest, learned = int(leaving.rest * share), int(leaving.learned * share)
        self.rest_out += rest
        self.learned_out += learned
        self.kept -= min(self.kept, rest + learned)
        return rest + learned

    def needs(self) -> tuple[int, int]:
        """Pages that the next turn brings home: by prefetch, and by faults."""
        expected = self.profile.later if self.wakes else self.profile.first
        if not expected.rest_out_pages:
            return self.learned_out, 0
        # As many of what is out as were touched of what was out when it was measured.
        share = min(expected.faulted_pages / expected.rest_out_pages, 1.0)
        return self.learned_out, min(round(share * self.rest_out), self.rest_out)

    def come_home(self, prefetched: int, faulted: int) -> None:
        """What `needs` said is at home; its copies in the pool stay."""
        self.learned_out -= prefetched
        self.rest_out -= faulted
        self.kept += prefetched + faulted
        self.refaults += faulted

    def turn_over(self) -> None:
        """The first turn has told what the next ones need."""
        if not self.wakes and self.out:
            here = self.profile.movable_pages - self.out
            self.learned = min(self.profile.learned_pages, here)
        self.wakes += 1

    def space(self) -> model.SpaceStatus:
        """What the engine would tell of it."""
        return model.SpaceStatus(
            id=PID,
            pid=PID,
            parent_id=0,
            command="simulated",
            state="attached",
            pages_out=self.out,
            pages_staged=0,
            pages_kept=self.kept,
            pages_same_filled=0,
            pages_lost=0,
            bytes_logical=self.out * PAGE_BYTES,
            bytes_pool=int(self.pool_bytes),
            bytes_table=self.profile.table_bytes,
            faults=self.refaults,
            faults_zero=0,
            wakes=self.wakes,
            pages_prefetched=0,
            pages_spared=0,
            pages_spared_touched=0,
            pages_missed=0,
            pages_late=0,
            pages_windowed=0,
            learned_pages=self.learned,
            refaults_dropped=0,
            prefetching=True,
        )

    def activity(self, cpu_s: float, *, running: bool) -> Activity:
        """What `/proc` would tell of it."""
        return Activity(1, running, int(cpu_s * TICKS_PER_SECOND), self.resident)

    def report(
        self, moved: int, new: int, cpu_s: float, *, interrupted: bool
    ) -> model.PageOutReport:
        """What the engine would tell of a page out."""
        return model.PageOutReport(
            pid=PID,
            pages_moved=moved,
            pages_stored=new,
            pages_clean=moved - new,
            pages_same_filled=0,
            pages_deduplicated=0,
            pages_raw=0,
            pages_returned=0,
            pages_pinned=0,
            regions_skipped=0,
            bytes_logical=moved * PAGE_BYTES,
            bytes_stored=int(new * self.profile.pool_page_bytes),
            chunks=1,
            elapsed_us=cpu_s * 1e6,
            stop_us=0.0,
            hold_us=[],
            pool_full=False,
            interrupted=interrupted,
        )


def view_of(name: str, pages: Pages, latency_target_s: float, now: float) -> Life:
    """The daemon's view of a sandbox that has just been found and attached."""
    member = Member(pid=PID, start_time=1, sandbox=name, command="simulated")
    sandbox = Sandbox(
        name=name,
        rule=_RULE,
        cgroup=f"/{name}",
        inode=0,
        domain="simulated",
        members=(member,),
        frozen=False,
        refused="",
        first_seen=now,
    )
    process = ProcessLife(member, attached=True, stay_pages=pages.profile.stay_pages)
    process.space = pages.space()
    process.look(pages.activity(0.0, running=False), now)
    # A reading that is not newer than the state would change nothing.
    life = Life(sandbox, phases.begin(now - _FOUND_S), latency_target_s, breakers.BreakerState())
    life.processes[PID] = process
    life.state = phases.advance(life.state, life.reading(now))
    return life

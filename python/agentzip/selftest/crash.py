"""
Crash checks: the daemon dies at every step and at random moments, and nobody notices.

The engine runs in a process of its own (`engine_host`) over targets that never stop working.  It is
killed, by itself at a named step or by us at any moment, and a new one takes over from the keeper.
Pages are on their way out, home, between the pool's tiers and to the disk meanwhile.  A target may
wait in between; it may never see a wrong byte, stay stopped or be forgotten.
"""

import time

from agentzip.pager import crash_points
from agentzip.selftest.conditions import assert_free, minor_faults, wait_until, waits_for_page
from agentzip.selftest.crowd import Crowd, crowd_of
from agentzip.selftest.exact_memory import expect
from agentzip.selftest.host_process import HostProcess
from agentzip.selftest.registry import CheckFailed, check
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

__all__ = ["named_steps"]

_RANDOM_KILLS = 15
_KEEPER_KILLS = 6

_SPILLED_PAGES = 400

_STEP_SECONDS = 1.5
"""How long the load runs in the hope of reaching a named step; then the daemon is killed anyway."""

_DEATH_SECONDS = 20.0
"""How long a daemon may take to die at a step that is on its way."""

_SHARED_PAGES_MAX = 2048
"""What the kernel is asked to copy at a time, so that a death in the middle of it can be met."""

_TAKEOVER_SECONDS = 3.0
"""How soon a daemon has taken over, its start included, although a thread has a thousand pages
before it."""

_FAULTS = 100
"""Of some thousand, those after which the daemon dies."""

_PAUSE_SECONDS = 3.0
"""A crash point that pauses does so for a second."""

_BEGUN_SECONDS = 0.4
"""How soon a page out of a few megabytes is at its first step, and a thread at its next page."""

_EVENT_STEPS = (
    *("event.read", "event.ordered", "event.turn_noted", "event.begun"),
    *("event.applied", "event.cleared"),
)
_CHANGES = {
    "dontneed": _EVENT_STEPS,
    "munmap-mmap": _EVENT_STEPS,
    "mremap-fixed": (*_EVENT_STEPS, "event.remap_moved"),
    "fork": (*_EVENT_STEPS, "fork.read", "fork.table_made", "fork.published"),
}
"""What a program does (`events.OPERATIONS`), and the steps that the daemon takes over it."""

_TRIES = 5
"""Lives given to a named step; a step that is not reached in any of them is a failure."""


@check("crash/named-steps", 240)
def named_steps(stage: Stage) -> None:
    """The daemon dies at each named step: of attach, page out, prefetch, events and detach."""
    missed = []
    with crowd_of(stage, 31) as crowd:
        crowd.start()
        crowd.kill()
        for point in crash_points():
            for attempt in range(_TRIES):
                passes = crowd.dice.randint(1, 4) if attempt == 0 else 1
                if crowd.live(
                    f"{point}:{passes}", _STEP_SECONDS, reattach="tach" in point or attempt > 0
                ):
                    break
            else:
                missed.append(point)
    expect(not missed, f"steps that were never reached: {missed}")


@check("crash/random-moments", 240)
def random_moments(stage: Stage) -> None:
    """The daemon is killed at random moments, with and without attaching and detaching."""
    with crowd_of(stage, 32) as crowd:
        crowd.start()
        crowd.kill()
        for number in range(_RANDOM_KILLS):
            crowd.live(None, crowd.dice.uniform(0.0, 0.5), reattach=number % 3 == 2)
            # The targets run against closed doors for a while.
            time.sleep(crowd.dice.uniform(0.0, 0.1))


@check("crash/keeper", 120)
def keeper(stage: Stage) -> None:
    """The keeper is killed; the daemon starts another, hands everything over, and dies."""
    with crowd_of(stage, 33) as crowd:
        crowd.start()
        for number in range(_KEEPER_KILLS):
            crowd.kill_keeper()
            if number % 2:
                # What the new keeper was given must be all that is needed.
                crowd.kill()
                crowd.start()


@check("crash/target-ends-meanwhile", 60)
def target_ends_meanwhile(stage: Stage) -> None:
    """A target that ends while no daemon lives is not remembered by the next one."""
    with crowd_of(stage, 34) as crowd:
        crowd.start()
        extra = stage.memory(8, 23)
        crowd.daemon.do("attach", pid=extra.pid)
        crowd.daemon.do("page_out", pid=extra.pid)
        crowd.kill()
        extra.kill()
        extra.wait(10)
        crowd.start()
        expect(extra.pid not in crowd.daemon.adopted, "a dead target was taken over")


@check("crash/worker-in-fault", 120)
def worker_in_fault(stage: Stage) -> None:
    """The daemon dies while its own thread waits for a page; the next one gives it that."""
    for _ in range(_TRIES):
        target = stage.start(stage.program("shared"))
        if _dies_over_worker(stage, target):
            break
        # The thread was through just then: its daemon is to be followed by another all the same.
        _taken_over(stage, target)
    else:
        raise CheckFailed("no daemon died while its thread waited for a page")
    _taken_over(stage, target)


def _dies_over_worker(stage: Stage, target: Target) -> bool:
    """Whether the thread waits for a page that nobody brings any more."""
    point = "page_out.stubborn:1:pause"
    with HostProcess(stage.run_dir, point, chunk_pages=_SHARED_PAGES_MAX) as daemon:
        expect(daemon.ready(), "the daemon died at its start")
        daemon.do("attach", pid=target.pid)
        # That alone: the child shares other pages with it, too, and they would come first.
        memory = tuple(map(int, target.ok("where").split()))
        daemon.begin("page_out", pid=target.pid, ranges=[memory])
        # It stays for a second before it lets the thread touch what the child shares.
        time.sleep(_BEGUN_SECONDS)
        target.ok("drop")
        # Nobody else touches anything: what is counted from here on are the thread's faults.
        before = minor_faults(target.pid)
        # In small steps: it takes a tenth of a second for all of them.
        deadline = time.monotonic() + _PAUSE_SECONDS
        while minor_faults(target.pid) < before + _FAULTS:
            expect(time.monotonic() < deadline, "the thread met no page that was dropped")
            time.sleep(0.001)
    return wait_until(lambda: waits_for_page(target.pid), _BEGUN_SECONDS)


def _taken_over(stage: Stage, target: Target) -> None:
    """A new daemon serves the target soon, and gives it back whole."""
    began = time.monotonic()
    with HostProcess(stage.run_dir) as daemon:
        expect(daemon.ready(), "the daemon died while it took over")
        seconds = time.monotonic() - began
        # Until then nobody's faults are answered but that thread's.
        expect(seconds < _TAKEOVER_SECONDS, f"taken over after {seconds:.1f} s")
        expect({target.pid} == daemon.adopted, f"not taken over: {daemon.adopted}")
        assert_free(target.pid)
        target.verify()
        target.ok("part")
        _give_back(daemon, target)


@check("crash/tiers", 400)
def tiers(stage: Stage) -> None:
    """What cold and spilled pages need (dictionaries, layouts, records, their key) outlives us."""
    with crowd_of(stage, 35) as crowd:
        crowd.start()
        peer, moved = stage.memory(8, 24), stage.memory(8, 25)
        for target in (peer, moved):
            crowd.daemon.do("attach", pid=target.pid)
            crowd.daemon.do("page_out", pid=target.pid)
        own = crowd.daemon.do("train", pid=peer.pid)["id"]
        crowd.daemon.do("recode", pid=peer.pid, peer=None, dictionary_id=own)
        crowd.daemon.do("recode", pid=moved.pid, peer=peer.pid, dictionary_id=own)
        crowd.daemon.do("spill", pid=moved.pid, pages_max=_SPILLED_PAGES)
        # They hold slots that no page needs, and die with the daemon.
        crowd.daemon.do("release_caches")
        before = [_kept(crowd, target) for target in (peer, moved)]
        stage.note(f"{before[1]}")
        expect(before[1]["disk"] == _SPILLED_PAGES, f"not spilled: {before[1]}")
        expect(before[0]["cold"] > 500 and before[1]["cold"] > 0, f"nothing is cold: {before}")
        expect(before[0]["uses"] > 500, f"the dictionary is not used: {before[0]}")
        crowd.kill()
        crowd.start()
        after = [_kept(crowd, target) for target in (peer, moved)]
        expect(before == after, f"not taken over: {before} became {after}")
        for target in (moved, peer):
            target.verify()
            crowd.daemon.do("page_out", pid=target.pid)
            expect(crowd.daemon.do("detach", pid=target.pid)["complete"], "not detached")
            target.verify()


def _kept(crowd: Crowd, target: Target) -> dict[str, int]:
    """Pages of a target by codec, and what they need; nothing that the busy others change."""
    pages: dict[str, int] = crowd.daemon.do("census", pid=target.pid)
    return {**pages, "uses": max(crowd.daemon.do("dictionaries").values(), default=0)}


@check("crash/events", 240)
def events(stage: Stage) -> None:
    """What the daemon has read of a change of the address space takes effect in the next one."""
    for change, steps in _CHANGES.items():
        for step in steps:
            _die_over(stage, change, step)


def _die_over(stage: Stage, change: str, step: str) -> None:
    """The program changes pages that are out, and the daemon dies at a step of taking that in."""
    target = stage.start(stage.program("events"), "--dir", str(stage.folder), change)
    with HostProcess(stage.run_dir, step) as daemon:
        expect(daemon.ready(), f"{step} was passed too early")
        daemon.do("attach", pid=target.pid)
        daemon.do("page_out", pid=target.pid)
        target.send(change)
        expect(daemon.dies_within(_DEATH_SECONDS), f"{change}: {step} was not reached")
    with HostProcess(stage.run_dir) as daemon:
        expect(daemon.ready(), "the daemon died while it took over")
        expect({target.pid} == daemon.adopted, f"not taken over: {daemon.adopted}")
        answer = target.read_line(after=change)
        expect(answer.startswith("ok"), f"{change} after {step}: {answer}")
        _give_back(daemon, target)


def _give_back(daemon: HostProcess, target: Target) -> None:
    """Page out once more, detach, and end both; the target is right after each step."""
    daemon.do("page_out", pid=target.pid)
    target.verify()
    expect(daemon.do("detach", pid=target.pid)["complete"], "not detached")
    daemon.do("close")
    target.verify()
    target.stop()

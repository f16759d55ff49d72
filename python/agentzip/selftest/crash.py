"""
Crash checks: the daemon dies at every step and at random moments, and nobody notices.

The engine runs in a process of its own (`engine_host`) over targets that never stop working.  It is
killed, by itself at a named step or by us at any moment, and a new one takes over from the keeper.
Pages are on their way out, home, between the pool's tiers and to the disk meanwhile.  A target may
wait in between; it may never see a wrong byte, stay stopped or be forgotten.
"""

import time

from agentzip.pager import crash_points
from agentzip.selftest.crowd import Crowd, crowd_of
from agentzip.selftest.exact_memory import expect
from agentzip.selftest.host_process import HostProcess
from agentzip.selftest.registry import check
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
        daemon.do("page_out", pid=target.pid)
        target.verify()
        expect(daemon.do("detach", pid=target.pid)["complete"], "not detached")
        daemon.do("close")
    target.verify()
    target.stop()

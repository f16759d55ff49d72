"""What one sandbox takes, from looks at it; no process is looked at here."""

import pytest

from agentzip.bench.fanout import think
from agentzip.bench.fanout.engine_modes import pages_of
from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.bench.fanout.profile import Look, Pages, TurnTimes, mean_pages, profile_of
from agentzip.bench.fanout.readings import Cpu, Footprint, MemoryRun, ModeRun, Played, Sample
from agentzip.bench.fanout.result import figures

MIB = 2**20


def look(rss: int, cpu_s: float, **pages: int) -> Look:
    """A sandbox of one process, a quarter of whose memory is shared by two."""
    return Look(
        rss=rss * MIB,
        pss=rss * MIB * 7 // 8,
        private=rss * MIB * 3 // 4,
        processes=1,
        cpu_s=cpu_s,
        pages=Pages(**pages),
    )


ASLEEP = [look(8, 1.0, out=100), look(8, 2.0, out=120, learned=30), look(16, 3.0, out=80)]
AWAKE = [look(24, 1.5, out=40), look(24, 2.5, out=60, prefetched=30), look(24, 3.5, out=20)]


def test_the_first_turn_stands_alone() -> None:
    """Nothing was learned before it; the means of memory are those of the later ones."""
    found = profile_of([TurnTimes(0, 0.1, 0.2, 0.3)], [ASLEEP], [AWAKE])
    first, later = found["first"], found["later"]
    assert isinstance(first, dict)
    assert isinstance(later, dict)
    assert (100, 40) == (first["asleep"]["out"], first["awake"]["out"])
    assert (100, 40) == (later["asleep"]["out"], later["awake"]["out"])
    assert (15, 15) == (later["asleep"]["learned"], later["awake"]["prefetched"])
    assert (12 * MIB, 24 * MIB) == (found["rss_asleep_bytes"], found["rss_awake_bytes"])
    assert (9 * MIB, 18 * MIB) == (found["private_asleep_bytes"], found["private_awake_bytes"])
    assert (0.5, 1.0) == (found["turn_cpu_s"], found["processes"])
    assert [{"turn": 0, "home_s": 0.1, "recall_s": 0.2, "tool_s": 0.3}] == found["turns"]


def test_without_looks_there_are_only_times() -> None:
    """Of a mode that was ended before its first turn nothing can be said."""
    assert {"turns": []} == profile_of([], [], [])


def test_a_turn_that_was_not_ended_is_left_out() -> None:
    """Its look before the wake has no look after the turn."""
    found = profile_of([], [ASLEEP], [AWAKE[:2]])
    assert 8 * MIB == found["rss_asleep_bytes"]


def test_pages_are_added_up_over_processes() -> None:
    """Those of other sandboxes do not count, nor do first touches of new memory."""
    space = {
        "pages_out": 5,
        "pages_kept": 4,
        "learned_pages": 3,
        "pages_prefetched": 2,
        "faults": 9,
        "faults_zero": 2,
    }
    spaces = [{**space, "pid": pid} for pid in (1, 2, 3)]
    assert Pages(10, 8, 6, 4, 14) == pages_of(spaces, {1, 3})
    assert {"out": 2.0, "kept": 0.0, "learned": 0.0, "prefetched": 0.0, "refaults": 0.0} == (
        mean_pages([Pages(out=1), Pages(out=3)])
    )


def test_the_figures_of_a_mode_have_its_profile() -> None:
    """With the mode's books, the load of the machine, and each turn taken apart."""
    sample = Sample(1.0, 100, Footprint(10, 20, 30), {0: 5}, {0: 5}, frozenset(), steady=True)
    played = Played(0, turns_s=[1.0], wakes_s=[0.4], homes_s=[0.1])
    played.asleep, played.awake = ASLEEP[:1], AWAKE[:1]
    run = ModeRun(
        mode="full",
        played=[played],
        memory=MemoryRun([sample], 100),
        cpu=Cpu(1.0),
        wall_s=2.0,
        processors=2,
        faults=0,
        oom_kills=0,
        start_s=7.0,
        busy_share=0.5,
        page_outs_s=0.25,
    )
    found = figures(run, run).profile
    assert (20, 30) == (found["tables_bytes"], found["overhead_bytes"])
    assert (7.0, 0.5, 0.25) == (found["start_s"], found["busy_share"], found["page_outs_s"])
    turn = {"turn": 0, "home_s": 0.1, "recall_s": pytest.approx(0.3), "tool_s": 0.6}
    assert [turn] == found["turns"]


def test_a_plan_thinks_as_the_simulation_does() -> None:
    """Both draw from the seed, the sandbox and the turn."""
    plan = FanoutPlan(think_s=9.0, seed=5)
    assert think.think_s(5, 9.0, 3, 2) == plan.think(3, 2)
    assert think.offset_s(5, 9.0, 3) == plan.offset(3)

"""The fan-out bench's plan, arithmetic, play and tables; no process is started here."""

import io
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

from agentzip import config
from agentzip.bench.fanout.codecs import CodecResult, CodecsResult
from agentzip.bench.fanout.find_max import MaxOfMode, MaxResult, search_max
from agentzip.bench.fanout.knob import KnobPoint, KnobResult, breaks, known_wake_ms
from agentzip.bench.fanout.plan import CODECS, FanoutPlan
from agentzip.bench.fanout.readings import (
    Cpu,
    Footprint,
    Habits,
    MemoryRun,
    ModeRun,
    Played,
    Sample,
)
from agentzip.bench.fanout.report import (
    codecs_json,
    draw_knob,
    knob_json,
    max_json,
    print_codecs,
    print_knob,
    print_max,
    print_report,
    to_json,
)
from agentzip.bench.fanout.result import (
    FanoutResult,
    ModeResult,
    count_wrong,
    figures,
    gain_of,
    habits_after,
    median_of,
    spread,
)
from agentzip.errors import InvalidSetting
from agentzip.workloads.catalogue import WORKLOADS


# ── the plan ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"workload": "E"}, "workload"),
        ({"modes": ("none", "fast")}, "mode"),
        ({"modes": ()}, "mode"),
        ({"sandboxes": 0}, "sandboxes"),
        ({"turns": 0}, "turns"),
        ({"think_s": -1.0}, "think"),
        ({"modes": ("encode",), "kill_daemon": True}, "kill-daemon"),
        ({"codec": "zip"}, "codec"),
        ({"size_bytes": 10 * 2**20}, "size"),
        ({"size_bytes": 10**12}, "size"),
        ({"workload": "A,waiting,F"}, "workload"),
        ({"workload": "A,D", "size_bytes": 90 * 2**20}, "size.*workload A"),
        ({"command": ("true",), "command_s": 0.0}, "for"),
        ({"command": ("true",), "kill_daemon": True, "modes": ("full",)}, "kill-daemon"),
    ],
)
def test_a_bad_plan_names_its_field(wrong: dict[str, Any], named: str) -> None:
    """Nothing is started for a value that cannot be used."""
    with pytest.raises(InvalidSetting, match=named):
        FanoutPlan(**wrong)


def test_mode_none_is_always_run_and_first() -> None:
    """It is what all others are compared with."""
    assert ["none", "encode", "ksm"] == FanoutPlan(modes=("ksm", "encode")).chosen


def test_think_times_and_questions_follow_from_the_seed() -> None:
    """Two plans with one seed are the same run; another seed is another one."""
    plan, same, other = FanoutPlan(), FanoutPlan(), FanoutPlan(seed=2)

    drawn = [(plan.think(i, k), plan.choice(i, k)) for i in range(5) for k in range(5)]
    assert drawn == [(same.think(i, k), same.choice(i, k)) for i in range(5) for k in range(5)]
    assert drawn != [(other.think(i, k), other.choice(i, k)) for i in range(5) for k in range(5)]
    assert len(drawn) == len(set(drawn))


def test_think_times_have_the_mean_that_was_asked_for() -> None:
    """And none is out of bounds."""
    plan = FanoutPlan(think_s=10.0)
    drawn = [plan.think(instance, turn) for instance in range(60) for turn in range(60)]

    assert pytest.approx(10.0, rel=0.05) == fmean(drawn)
    assert 1.0 <= min(drawn)
    assert max(drawn) <= 50.0


def test_sandboxes_are_dealt_out_to_the_workloads() -> None:
    """Each takes its turns in its own way, and has its own size."""
    plan = FanoutPlan(workload="A, waiting,finishing,busy", sandboxes=5, turns=9, think_s=10.0)
    alone = FanoutPlan(workload="busy", think_s=10.0)

    assert ["A", "waiting", "finishing", "busy", "A"] == [plan.name_of(one) for one in range(5)]
    assert [9, 2, 5, 9, 9] == [plan.turns_of(one) for one in range(5)]
    assert 34 == plan.turns_total
    assert 8 * alone.think(1, 3) == plan.think(1, 3)
    assert alone.think(2, 3) == plan.think(2, 3)
    default = {name: one.default_bytes for name, one in WORKLOADS.items()}
    assert sum(default[plan.name_of(one)] for one in range(5)) == plan.rss_bytes
    assert 5 * 2**30 == replace(plan, size_bytes=2**30).rss_bytes


def test_a_codec_alone_is_a_valid_configuration() -> None:
    """Of the daemon; each differs from the others, and none trains or encodes anew in time."""
    # JSON is YAML.
    found = {name: config.load(json.dumps(chosen)).config for name, chosen in CODECS.items()}

    alone = [one for name, one in found.items() if name != "pipeline"]
    assert 3 == len({(one.compression.algorithm, one.compression.level) for one in alone})
    assert {"none"} == {one.compression.dictionary for one in alone}
    assert all(one.policy.cold_grace_period > 3600 for one in alone)
    assert "auto" == found["pipeline"].compression.dictionary


# ── arithmetic ────────────────────────────────────────────────────────────────────────────────────
def _sample(
    pss: int, waiting: set[int], *, pool: int = 0, used: int = 0, steady: bool = True
) -> Sample:
    return Sample(
        at_s=0.0,
        used_bytes=used,
        footprint=Footprint(pool=pool, tables=pool // 10, overhead=5),
        rss={0: pss + 10, 1: pss + 10},
        pss={0: pss, 1: pss},
        waiting=frozenset(waiting),
        steady=steady,
        kernel_bytes=3,
        file_bytes=4,
        shmem_bytes=10,
    )


def _run(mode: str, samples: list[Sample], played: list[Played] | None = None) -> ModeRun:
    return ModeRun(
        mode=mode,
        played=played or [],
        memory=MemoryRun(samples, peak_bytes=max(one.used_bytes for one in samples)),
        cpu=Cpu(daemon=0.5, keeper=0.25, kernel=0.25),
        wall_s=10.0,
        processors=2,
        faults=7,
        oom_kills=0,
    )


def test_the_ratio_counts_who_waits_and_the_whole_bill() -> None:
    """Two samples, in one of which only one sandbox waits."""
    none = MemoryRun([replace(_sample(100, {0, 1}, used=500), footprint=Footprint())], 500)
    run = MemoryRun([_sample(20, {0, 1}, pool=30), _sample(20, {1}, pool=20, used=100)], 100)

    gained = gain_of(run, none)

    assert gained is not None
    baseline, after, pool, tables, overhead = (220 + 110) // 2, (40 + 20) // 2, 25, 2, 5
    assert baseline / (after + pool + tables + overhead) == gained.ratio
    assert 150 / (after + pool + tables + overhead) == gained.ratio_pss
    assert 450 == gained.host_gain_bytes


def test_what_a_peer_read_in_and_nobody_mapped_is_on_its_bill() -> None:
    """In the ratio and in what everything costs."""
    none = MemoryRun([_sample(100, {0, 1})], 0)
    read_in = replace(_sample(20, {0, 1}), footprint=Footprint(pool=30, unmapped=40))
    run = MemoryRun([read_in], 0)

    gained = gain_of(run, none)

    assert gained is not None
    assert 220 / (40 + 30 + 40) == gained.ratio
    assert 40 + 30 + 40 == run.cost_bytes
    assert 40 == run.made_of()["unmapped"]


def test_samples_after_the_first_finish_do_not_count() -> None:
    """Towards the end those who have finished wait for nothing, and would look like a gain."""
    none = MemoryRun([_sample(100, {0, 1})], 0)
    run = MemoryRun([_sample(20, {0, 1}), _sample(1, {0, 1}, steady=False)], 0)

    assert gain_of(MemoryRun(run.samples[:1], 0), none) == gain_of(run, none)
    assert gain_of(MemoryRun([], 0), none) is None


def test_what_differs_from_mode_none_is_wrong() -> None:
    """A turn, a digest, and what an agent found itself count one each."""
    right = [Played(0, said=["a", "b"], digest="d"), Played(1, said=["c"], digest="e")]
    found = [
        Played(0, said=["a", "x"], digest="y"),
        Played(1, said=["c"], digest="", checks_wrong=1),
    ]

    assert 0 == count_wrong(right, right)
    assert 3 == count_wrong(found, right)


def test_prefetch_is_judged_from_the_wake_that_is_asked_for() -> None:
    """Counters only grow; what lies between two wakes is their difference."""
    grown = [Habits(10 * k, 9 * k, 100 * k, k) for k in range(1, 5)]
    played = [Played(0, habits=grown), Played(1, habits=grown[:2])]

    assert Habits(60, 54, 600, 6) == habits_after(played, 0)
    assert Habits(20, 18, 200, 2) == habits_after(played, 0, 1)
    assert Habits(20, 18, 200, 2) == habits_after(played, 2)
    assert habits_after([Played(0)], 0) is None


def test_counters_that_a_new_daemon_began_anew_are_added_to_those_before() -> None:
    """A kill in the middle takes nothing away, and nothing is below 0."""
    played = Played(0, habits=[Habits(8, 6, 80, 4), Habits(16, 12, 160, 8), Habits(4, 3, 40, 2)])

    assert Habits(20, 15, 200, 10) == habits_after([played], 0)
    assert Habits(4, 3, 40, 2) == habits_after([played], 2)


def test_figures_of_a_mode() -> None:
    """Every key that the issue names is there, with the value that its samples say."""
    played = [
        Played(0, "A", [1.0, 3.0], [0.1, 0.2], digest="d", ended_s=9.0, finished=True),
        Played(1, "D", [2.0], [0.3], habits=[Habits(10, 9, 90, 9)]),
    ]
    for one in played:
        one.said.append("a")
    none = _run("none", [_sample(100, {0, 1}, used=900)], played)
    run = _run("full", [_sample(10, {0, 1}, pool=20, used=300)], played)

    found = figures(run, none)

    assert {"mean": 2.0, "p50": 2.0, "p95": 3.0, "p99": 3.0} == found.turn_s
    assert pytest.approx(200.0) == found.wake_ms["p50"]
    assert pytest.approx(9.0) == found.task_s
    assert 600 == found.host_gain_bytes
    assert 2 * 100 + 5 - (2 * 10 + 20 + 2 + 5) == found.pss_gain_bytes
    assert pytest.approx(5.0) == found.cpu_percent
    assert {"daemon": 2.5, "keeper": 1.25, "kernel": 1.25, "advice": 0.0} == found.cpu_percent_of
    assert 2.0 == found.by_workload["D"]["turn_s"]["mean"]
    assert pytest.approx(200.0) == found.by_workload["A"]["wake_ms"]["p99"]
    assert pytest.approx(0.9) == found.prefetch["hit_rate"]
    assert pytest.approx(0.1) == found.prefetch["waste"]
    assert {"hit_rate": None, "waste": None} == found.prefetch_from_third
    assert 1 == found.finished
    assert 0 == found.results_wrong
    # The samples behind the percentiles, and the parts behind the sums.
    assert [1.0, 3.0, 2.0] == found.turns_s
    assert pytest.approx([100.0, 200.0, 300.0]) == found.wakes_ms
    assert found.cost_bytes == sum(
        found.made_of[part]
        for part in ("private", "files", "shared_memory", "pool", "tables", "overhead")
    )
    assert (6, 4, 3) == tuple(found.made_of[part] for part in ("private", "files", "kernel"))
    assert {
        "rss_before_bytes": 110,
        "pss_before_bytes": 100,
        "after_bytes": (2 * 10 + 20 + 2 + 5) // 2,
    } == found.waiting


def test_a_habit_is_known_from_the_third_wake_on() -> None:
    """Of each sandbox; those that have not woken so often say nothing about it."""
    played = [
        Played(0, "A", wakes_s=[0.9, 0.8, 0.1, 0.3]),
        Played(1, "A", wakes_s=[0.7, 0.6, 0.2]),
        Played(2, "A", wakes_s=[0.5, 0.4]),
    ]
    run = _run("full", [_sample(10, {0})], played)
    fresh = _run("full", [_sample(10, {0})], played[2:])

    known = figures(run, run).wake_known_ms
    assert pytest.approx({"mean": 200.0, "p50": 200.0, "p95": 300.0, "p99": 300.0}) == known
    assert dict.fromkeys(known) == figures(fresh, fresh).wake_known_ms


def test_what_nobody_knows_of_a_command_is_null() -> None:
    """It takes no turns and has no results; its time and its memory are known."""
    played = [Played(0, "command", began_s=1.0, ended_s=5.0, finished=True)]
    run = _run("full", [_sample(10, {0, 1})], played)

    found = json.loads(json.dumps(asdict(figures(run, run))))

    assert found["results_wrong"] is None
    assert dict.fromkeys(("mean", "p50", "p95", "p99")) == found["turn_s"] == found["wake_ms"]
    assert (4.0, 1) == (found["task_s"], found["finished"])
    assert median_of([figures(run, run)] * 2).results_wrong is None


def test_rounds_are_combined_by_medians_but_harm_adds_up() -> None:
    """One bad round in three must not hide its wrong result, nor move the figures."""
    rounds = [
        ModeResult(
            mode="full",
            ratio=ratio,
            turn_s={"p99": ratio},
            finished=done,
            results_wrong=wrong,
            turns_s=[ratio],
        )
        for ratio, done, wrong in ((4.0, 2, 0), (9.0, 1, 1), (5.0, 2, 0))
    ]

    found = median_of(rounds)

    assert (5.0, {"p99": 5.0}) == (found.ratio, found.turn_s)
    assert (1, 1) == (found.finished, found.results_wrong)
    # A distribution is over all rounds.
    assert [4.0, 9.0, 5.0] == found.turns_s


def test_the_search_finds_the_most_that_fit() -> None:
    """Wherever it begins, and in few tries; none if one is too many."""
    for most in (1, 7, 23, 190):
        for first in (1, 8, 40):
            asked: list[int] = []

            def fits(count: int, most: int = most, asked: list[int] = asked) -> float:
                asked.append(count)
                return count / (most + 0.5)

            found = search_max(first, fits)
            assert most - max(1, most // 20) <= found <= most
            assert len(asked) <= 8
    assert 0 == search_max(4, lambda _count: 2.0)


def test_a_knob_is_judged_by_wakes_whose_habit_is_known() -> None:
    """Of a run too short for one, by all."""
    known, some, none = spread([4.0, 6.0]), spread([90.0, 70.0]), spread([])
    assert 5.0 == known_wake_ms(ModeResult(mode="full", wake_known_ms=known, wake_ms=some))
    assert 80.0 == known_wake_ms(ModeResult(mode="full", wake_known_ms=none, wake_ms=some))


def test_a_knob_that_turns_back_is_told() -> None:
    """But not for what two equal runs differ by."""
    assert [] == breaks(["a", "b", "c"], [10.0, 9.8, 20.0])
    assert ["c"] == breaks(["a", "b", "c"], [10.0, 20.0, 15.0])


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────
def _result() -> FanoutResult:
    found = [
        ModeResult(mode="none", turn_s=spread([1.0]), wake_ms=spread([5.0]), finished=2),
        ModeResult(mode="full", prefetch={"hit_rate": 0.9, "waste": None}, finished=2),
    ]
    plan: dict[str, object] = {"workload": "A", "sandboxes": 2, "turns": 1}
    return FanoutResult(plan=plan, modes=found, rounds=[found], skipped={"zram": "in use"})


def _printed(show: Callable[[Console], None]) -> str:
    out = io.StringIO()
    show(Console(file=out, width=160))
    return out.getvalue()


def test_the_json_object_has_what_the_issue_names() -> None:
    """Under the names that other tools read."""
    found = json.loads(json.dumps(to_json(_result())))

    wanted = {
        *("mode", "ratio", "ratio_pss", "host_gain_bytes", "peak_bytes", "mean_bytes", "task_s"),
        *("turn_s", "wake_ms", "faults", "prefetch", "cpu_percent", "finished", "results_wrong"),
    }
    assert ["none", "full"] == [one["mode"] for one in found["modes"]]
    assert all(wanted <= one.keys() for one in found["modes"])
    assert {"mean", "p50", "p95", "p99"} == found["modes"][0]["turn_s"].keys()
    assert 0 == found["results_wrong"]
    assert not found["complete"]


def test_tables_say_what_was_skipped_and_what_is_not_known() -> None:
    """A mode without a figure has a dash, not a zero."""
    text = _printed(lambda on: print_report(_result(), on))

    assert "zram: skipped, in use" in text
    assert "90%" in text
    assert "results wrong: 0" in text


def test_the_largest_runs_are_shown_with_what_was_tried() -> None:
    """Counts that did not fit are marked."""
    most = MaxResult(2**30, {}, [MaxOfMode("full", 7, 2**29, tried=[(4, True), (9, False)])])

    assert "4, 9-" in _printed(lambda on: print_max(most, on))
    assert 7 == max_json(most)["modes"][0]["sandboxes"]


def test_codecs_are_told_beside_mode_none() -> None:
    """Each under its name, with its own figures."""
    found = [CodecResult("lz4", ModeResult(mode="full", ratio=2.5, wake_ms=spread([7.0])))]
    result = CodecsResult({}, ModeResult(mode="none", wake_ms=spread([3.0])), found)
    text = _printed(lambda on: print_codecs(result, on))

    assert "7 ms" in text.splitlines()[-2]
    assert "none" in text.splitlines()[-3]
    assert 2.5 == codecs_json(result)["codecs"][0]["figures"]["ratio"]


def test_the_knob_is_drawn_and_told(tmp_path: Path) -> None:
    """A picture, a table, a verdict."""
    pytest.importorskip("matplotlib")
    points = [
        KnobPoint(target, ModeResult(mode="full", pss_gain_bytes=saved, wake_ms={"p99": 5.0}))
        for target, saved in ((0.001, 2**20), (0.1, 2**22))
    ]
    knob = KnobResult({}, ModeResult(mode="none"), points, wake_breaks=["100 ms"])
    draw_knob(knob, tmp_path / "new" / "knob.png")
    text = _printed(lambda on: print_knob(knob, on))

    assert (tmp_path / "new" / "knob.png").read_bytes().startswith(b"\x89PNG")
    assert "memory saved: monotonic" in text
    assert "known wake: not monotonic at 100 ms" in text
    assert 2 == len(knob_json(knob)["points"])

"""One simulated host: nothing is lost, memory has a bound, one seed is one run."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentzip.policy import planner
from agentzip.simulation.model import HostRun, HostShape, Play, simulate_host
from agentzip.simulation.profiles import MODES, Profile

MIB, GIB = 2**20, 2**30

FULL = planner.Watermarks(start=0.02, stop=0.01)
"""As on a host that is full: what pays leaves."""

PLAY = Play(turns=3, think_s=20.0, seed=1)


def simulate(
    profile: Profile, count: int, shape: HostShape | None = None, play: Play = PLAY
) -> HostRun:
    """Some sandboxes on a host, a large one if none is given."""
    shape = shape or HostShape(memory_bytes=8 * GIB, cores=4, watermarks=FULL)
    return simulate_host(shape, play, [profile] * count)


@settings(max_examples=30)
@given(
    st.sampled_from(MODES),
    st.integers(1, 12),
    st.integers(2, 4),
    st.integers(600, 3000),
    st.integers(1, 8),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.floats(0.02, 0.9),
)
def test_no_sandbox_is_lost_and_memory_has_a_bound(
    profiles: dict[str, Profile],
    mode: str,
    count: int,
    turns: int,
    memory_mib: int,
    cores: int,
    seed: int,
    storm: float,
    start: float,
) -> None:
    """
    Each takes all its turns, or the run says why not; no host uses more than it has, but in none.
    """
    marks = planner.Watermarks(start=start, stop=start / 2)
    shape = HostShape(memory_bytes=memory_mib * MIB, cores=cores, watermarks=marks)
    play = Play(turns=turns, think_s=5.0, seed=seed, storm_share=storm)
    run = simulate(profiles[mode], count, shape, play)

    assert count == run.sandboxes >= run.started >= run.finished == len(run.tasks_s)
    assert (run.finished == count) == (run.stuck == "")
    if not run.stuck:
        assert turns * count == len(run.turns_s) == len(run.wakes_s)
    above = max(run.most_bytes - shape.memory_bytes, 0.0)
    assert above == run.above_bytes
    assert mode == "none" or not above
    # Sums of floats: a byte is nothing.
    assert 0 < run.mean_bytes <= run.peak_bytes + 1 <= run.most_bytes + 2 or run.stuck
    assert all(0 < wake for wake in run.wakes_s)


@pytest.mark.parametrize("mode", MODES)
def test_one_seed_is_one_run(profiles: dict[str, Profile], mode: str) -> None:
    """The same again to the last digit; another seed is another run."""
    runs = [simulate(profiles[mode], 6, play=replace(PLAY, seed=seed)) for seed in (1, 1, 2)]
    assert asdict(runs[0]) == asdict(runs[1])
    assert runs[0].turns_s != runs[2].turns_s


def test_memory_of_mode_none_is_said_to_be_too_little(profiles: dict[str, Profile]) -> None:
    """Nobody keeps it from using more than there is; how much more is told."""
    run = simulate(profiles["none"], 20, HostShape(memory_bytes=GIB, cores=4))
    assert 20 == run.finished
    assert run.most_bytes - GIB == run.above_bytes > 0


def test_what_leaves_is_gone_and_what_is_needed_comes_home(profiles: dict[str, Profile]) -> None:
    """Every mode takes less memory than none, and its wakes take longer."""
    runs = {mode: simulate(profiles[mode], 8) for mode in MODES}
    none = runs["none"]
    for mode in MODES[1:]:
        assert runs[mode].mean_bytes < none.mean_bytes
        assert sum(runs[mode].wakes_s) > sum(none.wakes_s)
        assert runs[mode].own_cpu_s > 0
    assert runs["encode"].refaults > runs["prefetch"].refaults > 0
    assert (0, 0.0) == (none.refaults, none.own_cpu_s)


def test_the_real_planner_decides(
    profiles: dict[str, Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked in each tick, of sandboxes as they are; where it plans nothing nothing leaves."""
    asked: list[int] = []

    def nothing(
        sandboxes: Sequence[planner.SandboxState],
        _host: planner.Host,
        _rules: planner.Rules,
        state: planner.PlannerState,
    ) -> planner.Plan:
        asked.extend(part.rest_pages for one in sandboxes for part in one.parts)
        return planner.Plan((), (), state)

    full = profiles["full"]
    before = simulate(full, 4)
    monkeypatch.setattr(planner, "plan", nothing)
    run = simulate(full, 4)

    assert {full.movable_pages} == set(asked)
    assert 0 == run.refaults < before.refaults
    assert run.mean_bytes > before.mean_bytes


def test_a_host_with_enough_memory_is_left_alone(profiles: dict[str, Profile]) -> None:
    """Below the stop watermark memory costs nothing, so nothing leaves."""
    shape = HostShape(memory_bytes=64 * GIB, cores=4)
    assert 0 == simulate(profiles["full"], 8, shape).refaults


def test_a_larger_latency_target_lets_more_leave(profiles: dict[str, Profile]) -> None:
    """More of the learned set goes, and wakes bring more home."""
    # A learned set that no small target lets go whole.
    profile = replace(profiles["full"], learned_pages=10_000)
    low, high = (
        simulate(profile, 6, play=replace(PLAY, turns=5, latency_target_s=target))
        for target in (0.001, 1.0)
    )
    assert high.mean_bytes < low.mean_bytes
    assert sum(high.wakes_s) > sum(low.wakes_s)


def test_a_storm_wakes_many_at_one_moment(profiles: dict[str, Profile]) -> None:
    """They queue for cores: their wakes take longer than the others'."""
    play = replace(PLAY, storm_share=1.0)
    run = simulate(profiles["prefetch"], 24, play=play)
    others = simulate(profiles["prefetch"], 24)
    assert 12 < len(run.storm_wakes_s) <= 24
    assert max(run.storm_wakes_s) > max(others.wakes_s)
    assert 24 * PLAY.turns == len(run.turns_s)


def test_a_wake_waits_for_memory(profiles: dict[str, Profile]) -> None:
    """On a host that is nearly full some wake has to, and is late by it; or ends the run."""
    profile = replace(profiles["prefetch"], start_s=0.0)
    # Six asleep and one whole fit, and what wakes must leave; six awake at once do not.
    asleep = 6 * (profile.stay_pages * 4096 + profile.movable_pages * profile.pool_page_bytes)
    memory = int(asleep + 2.2 * profile.whole_pages * 4096) + profile.overhead_bytes
    shape = HostShape(memory_bytes=memory + 256 * MIB, cores=4)
    play = replace(PLAY, storm_share=1.0)
    run = simulate(profile, 6, shape, play)
    assert ("", 6) == (run.stuck, run.finished)
    assert 0 < run.memory_wait_s <= max(run.wakes_s)
    strict = simulate(profile, 6, shape, replace(play, ends_when_short=True))
    assert "wait for memory" in strict.stuck


def test_a_host_that_can_hold_no_sandbox_says_so(profiles: dict[str, Profile]) -> None:
    """It ends, and names what could not go on."""
    for mode in ("prefetch", "full"):
        run = simulate(profiles[mode], 3, HostShape(memory_bytes=320 * MIB, cores=2))
        assert "3 sandboxes cannot start" in run.stuck
        assert 0 == run.started


def test_a_long_wait_is_no_standstill(profiles: dict[str, Profile]) -> None:
    """Nothing happens for minutes and nobody waits for memory: the turns are taken all the same."""
    run = simulate(profiles["full"], 1, play=replace(PLAY, think_s=600.0))
    assert ("", 1) == (run.stuck, run.finished)

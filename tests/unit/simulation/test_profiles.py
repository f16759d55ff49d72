"""What one sandbox takes, as it is read from the bench's JSON."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentzip.errors import InvalidSetting
from agentzip.policy.prices import PAGE_BYTES
from agentzip.simulation.profiles import MODES, Measured, Profile, Quantiles, profiles_of

Run = dict[str, Any]


def read(value: Run) -> dict[str, Profile]:
    """The profiles of an object."""
    return profiles_of(Measured.of(value, "run.json"))


def test_every_mode_of_the_bench_that_keeps_books_has_a_profile(
    profiles: dict[str, Profile],
) -> None:
    """The kept run has all four, and their memory is that of the same sandbox."""
    assert list(MODES) == list(profiles)
    assert 1 == len({profile.whole_pages for profile in profiles.values()})
    assert 0 == profiles["none"].movable_pages
    assert 1 == len({profiles[mode].stay_pages for mode in MODES[1:]})


def test_memory_and_pool_are_those_of_the_run(kept: Run, profiles: dict[str, Profile]) -> None:
    """Private memory in mode none is the whole; the pool is spread over what is in it."""
    none, prefetch = kept["modes"][0], kept["modes"][2]
    assert none["profile"]["private_awake_bytes"] // PAGE_BYTES == profiles["none"].whole_pages
    later = prefetch["profile"]["later"]
    stored = [later[state]["out"] + later[state]["kept"] for state in ("asleep", "awake")]
    told = 3 * profiles["prefetch"].pool_page_bytes * sum(stored) / 2
    assert pytest.approx(prefetch["pool_bytes"], rel=0.01) == told


def test_all_processor_time_of_a_mode_is_in_its_profile(
    kept: Run, profiles: dict[str, Profile]
) -> None:
    """What encoding and bringing home do not explain is upkeep; nothing is lost."""
    full = profiles["full"]
    measured = kept["modes"][3]
    later = measured["profile"]["later"]
    home = later["asleep"]["out"] - later["awake"]["out"]
    brought = later["awake"]["prefetched"] - later["asleep"]["prefetched"]
    turn_s = brought * 8e-6 + (home - brought) * 15e-6 + home * full.again_s
    told = 18 * turn_s + 3 * measured["wall_s"] * full.upkeep_cores
    assert pytest.approx(measured["cpu_s"], rel=0.01) == told


def test_sandboxes_of_several_processes_share_nothing(kept: Run) -> None:
    """What a browser's processes share with each other is not shared with other browsers."""
    for mode in kept["modes"]:
        mode["profile"]["processes"] = 7.0
    none = read(kept)["none"]
    assert 0 == none.shared_bytes
    assert kept["modes"][0]["profile"]["pss_awake_bytes"] // PAGE_BYTES == none.whole_pages


def _drop(*path: str | int) -> Callable[[Run], None]:
    def spoil(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        del value[path[-1]]

    return spoil


def _set(new: object, *path: str | int) -> Callable[[Run], None]:
    def spoil(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = new

    return spoil


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_drop("plan"), "plan"),
        (_drop("host"), "host"),
        (_drop("modes"), "none"),
        (_drop("modes", 0), "none"),
        (_set("B,waiting", "plan", "workload"), "plan.workload is 'B,waiting'"),
        (_set("waiting", "plan", "workload"), "plan.workload is 'waiting'"),
        (_set(["sleep", "9"], "plan", "command"), r"plan.workload is \['sleep', '9'\]"),
        (_drop("plan", "sandboxes"), "plan.sandboxes"),
        (_set(0, "plan", "sandboxes"), "plan.sandboxes"),
        (_set("many", "plan", "turns"), "plan.turns"),
        (_set(1, "plan", "turns"), "plan.turns"),
        (_set(True, "plan", "turns"), "plan.turns"),
        (_drop("host", "cpus"), "host.cpus"),
        (_drop("modes", 0, "profile"), "profile.processes of mode none"),
        (_drop("modes", 3, "profile", "later"), "profile.later.asleep.out of mode full"),
        (_drop("modes", 3, "profile", "turns"), "profile.turns of mode full"),
        (_set([], "modes", 3, "profile", "turns"), "profile.turns of mode full"),
        (_set([1], "modes", 3, "profile", "turns"), "profile.turns"),
        (_set(-1, "modes", 1, "cpu_s"), "cpu_s of mode encode"),
        (_set(float("nan"), "modes", 1, "pool_bytes"), "pool_bytes of mode encode"),
        (_drop("modes", 2, "profile", "tables_bytes"), "profile.tables_bytes of mode prefetch"),
    ],
)
def test_what_is_missing_is_named(kept: Run, spoil: Callable[[Run], None], named: str) -> None:
    """A run of an older version, or one that was cut, says which figure it lacks."""
    spoil(kept)
    with pytest.raises(InvalidSetting, match=named) as refusal:
        read(kept)
    assert refusal.value.hint


@pytest.mark.parametrize("value", [[], "text", 7, None])
def test_what_is_no_object_is_refused(value: object) -> None:
    """JSON of another kind is no result of the bench."""
    with pytest.raises(InvalidSetting, match="not a JSON object"):
        Measured.of(value, "run.json")


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_stay_within_what_was_measured(
    values: list[float], low: float, high: float
) -> None:
    """They rise, and neither end is passed."""
    found = Quantiles.of(values)
    low, high = min(low, high), max(low, high)
    assert min(values) <= found.at(low) <= found.at(high) + 1e-9
    assert found.at(high) <= max(values) + 1e-9
    assert min(values) == found.at(0.0)
    assert max(values) == found.at(1.0)


def test_a_ratio_needs_a_pool(profiles: dict[str, Profile]) -> None:
    """Without one it is 1; else it is a page over what it takes."""
    assert 1.0 == profiles["none"].ratio
    assert 2.0 == replace(profiles["full"], pool_page_bytes=PAGE_BYTES / 2).ratio

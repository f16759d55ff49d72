"""The rule for background work: what is worth doing, and that it stays within bounds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentzip.policy import tiers

TARGET = tiers.TargetState(
    pid=1,
    domain="d",
    image="i",
    tier="warm",
    pages_out=70_000,
    bytes_pool=75_000_000,
    idle_s=60.0,
)
HOST = tiers.HostState(
    memory_bytes=24 << 30,
    cores=2,
    cpu_idle_share=1.0,
    pool_bytes=200_000_000,
    pool_bytes_max=8_000_000_000,
    pool_waste_bytes=0,
    disk_bytes_free=0,
)
RULES = tiers.Rules()

waits = st.floats(min_value=0, max_value=1e6)
shares = st.floats(min_value=0, max_value=1)
targets = st.builds(
    tiers.TargetState,
    pid=st.integers(1, 50),
    domain=st.sampled_from(["a", "b"]),
    image=st.sampled_from(["x", "y"]),
    tier=st.sampled_from(["warm", "cold", "frozen"]),
    pages_out=st.integers(0, 10**6),
    bytes_pool=st.integers(0, 10**9),
    idle_s=waits,
    expected_wait_s=st.none() | waits,
)
hosts = st.builds(
    tiers.HostState,
    memory_bytes=st.integers(1 << 30, 1 << 40),
    cores=st.integers(1, 128),
    cpu_idle_share=shares,
    pool_bytes=st.integers(0, 10**10),
    pool_bytes_max=st.integers(1 << 20, 10**10),
    pool_waste_bytes=st.integers(0, 10**9),
    disk_bytes_free=st.integers(0, 10**10),
)


def test_a_wait_pays_for_cold_pages_when_the_processors_are_idle() -> None:
    """22 MB for 10 minutes against 18 processor seconds at two hundredths of 12 GiB each."""
    assert tiers.is_worth(replace(TARGET, idle_s=600.0), "cold", HOST)
    assert not tiers.is_worth(replace(TARGET, idle_s=60.0), "cold", HOST)


def test_busy_processors_make_background_work_dear() -> None:
    """The same wait does not pay when every processor second is wanted by somebody."""
    busy = replace(HOST, cpu_idle_share=0.0)

    assert not tiers.is_worth(replace(TARGET, idle_s=600.0), "cold", busy)


def test_an_announced_wait_counts_for_what_is_left_of_it() -> None:
    """Half an hour announced is worth the work at once; a minute is not."""
    assert tiers.is_worth(replace(TARGET, expected_wait_s=1800.0), "cold", HOST)
    assert not tiers.is_worth(replace(TARGET, expected_wait_s=120.0), "cold", HOST)
    assert tiers.expected_rest(replace(TARGET, expected_wait_s=30.0)) == TARGET.idle_s


@given(targets, hosts, waits)
def test_a_longer_wait_never_makes_a_move_less_worth(
    target: tiers.TargetState, host: tiers.HostState, more: float
) -> None:
    """Worth grows with the wait."""
    waiting = replace(target, expected_wait_s=None)
    longer = replace(waiting, idle_s=waiting.idle_s + more)
    for tier in tiers.COSTS:
        assert tiers.is_worth(longer, tier, host) >= tiers.is_worth(waiting, tier, host)


@given(st.lists(targets, max_size=8, unique_by=lambda target: target.pid), hosts)
def test_a_plan_stays_within_its_bounds(
    states: list[tiers.TargetState], host: tiers.HostState
) -> None:
    """The budget holds, peers never cross a trust domain, nothing spills without a file."""
    by_pid = {state.pid: state for state in states}
    plan = tiers.plan(states, host, RULES)

    budget = sum(action.budget_s for action in plan if not isinstance(action, tiers.Spill))
    assert budget <= RULES.budget_s * 1.000001
    for action in plan:
        if isinstance(action, tiers.Move):
            assert by_pid[action.pid].idle_s >= RULES.cold_after_s
            if action.peer is not None:
                peer, target = by_pid[action.peer], by_pid[action.pid]
                assert peer.pid != target.pid
                assert (peer.domain, peer.image) == (target.domain, target.image)
        if isinstance(action, tiers.Spill):
            assert host.disk_bytes_free > 0
            assert 0 < action.pages_max <= max(1, by_pid[action.pid].pages_out)


def test_the_longest_idle_pages_go_to_the_disk_above_the_threshold() -> None:
    """As many as bring the pool below the threshold, oldest first."""
    states = [
        replace(TARGET, pid=1, idle_s=50.0, bytes_pool=100, pages_out=10),
        replace(TARGET, pid=2, idle_s=500.0, bytes_pool=100, pages_out=10),
    ]
    host = replace(HOST, pool_bytes=950, pool_bytes_max=1000, disk_bytes_free=10_000)

    spills = [
        action for action in tiers.plan(states, host, RULES) if isinstance(action, tiers.Spill)
    ]

    assert spills == [tiers.Spill(2, 10), tiers.Spill(1, 5)]


def test_a_pool_that_wastes_memory_is_compacted_if_the_operator_wants_it() -> None:
    """`pool.defrag` switches it off."""
    host = replace(HOST, pool_waste_bytes=100_000_000)

    assert any(isinstance(a, tiers.Compact) for a in tiers.plan([], host, RULES))
    assert tiers.plan([], host, replace(RULES, defrag=False)) == []


@pytest.mark.parametrize(
    ("gain", "encoded", "size", "pays"),
    [
        (1.0, 10**9, 10, False),
        (0.9, 10**9, 10, False),
        (1.25, 75_000_000, 1 << 20, True),
        (1.25, 4_000_000, 1 << 20, False),
    ],
)
def test_a_dictionary_must_save_more_than_its_size(
    gain: float, encoded: int, size: int, pays: bool
) -> None:
    """A dud is never used, and neither is a good one for too few pages."""
    assert tiers.pays_for_itself(gain, encoded, size) is pays


@pytest.mark.parametrize(
    ("memory_mib", "wanted_kib"), [(1, 64), (128, 256), (256, 512), (512, 1024), (4096, 1024)]
)
def test_a_cold_dictionary_is_a_small_part_of_its_process(memory_mib: int, wanted_kib: int) -> None:
    """A 512th, within the sizes that gain."""
    assert wanted_kib << 10 == tiers.cold_dictionary_bytes(memory_mib << 20)

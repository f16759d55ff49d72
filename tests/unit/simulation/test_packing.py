"""Sandboxes onto hosts, and how many hosts a fleet needs."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentzip.errors import InvalidSetting
from agentzip.simulation.figures import host_figures
from agentzip.simulation.model import HostShape, Play, simulate_host
from agentzip.simulation.packing import Bounds, fit, net_bytes, proposals
from agentzip.simulation.profiles import Profile

MIB, GIB = 2**20, 2**30

SHAPE = HostShape(memory_bytes=GIB, cores=2, start_share=0.9)
PLAY = Play(turns=3, think_s=10.0, seed=1)


@given(st.integers(1, 200), st.integers(1, 30), st.sampled_from(["none", "prefetch", "full"]))
def test_every_sandbox_has_one_host_and_every_host_room(
    profiles: dict[str, Profile], sandboxes: int, memory_gib: int, mode: str
) -> None:
    """No proposal loses or doubles a sandbox, or packs more than the memory it means to fill."""
    small = profiles[mode]
    kinds = [small, replace(small, workload="large", stay_pages=3 * small.whole_pages)]
    shape = HostShape(memory_bytes=memory_gib * GIB, cores=2)
    found = proposals(kinds, sandboxes, shape, PLAY)

    expected = Counter(number % 2 for number in range(sandboxes))
    nets = [net_bytes(kind, PLAY) for kind in kinds]
    for packing in found:
        assert expected == Counter(number for host in packing.hosts for number in host)
        packed = max(sum(nets[number] for number in host) for host in packing.hosts)
        assert packed <= max(packing.fill * shape.memory_bytes, *nets)
    hosts = [len(packing.hosts) for packing in found]
    assert sorted(hosts) == hosts
    assert sandboxes == hosts[-1]


def test_net_memory_is_what_stays_and_our_books(profiles: dict[str, Profile]) -> None:
    """None keeps all; where the model thinks for longer the sandbox is at home for less."""
    none, prefetch = profiles["none"], profiles["prefetch"]
    assert none.whole_pages * 4096 == net_bytes(none, PLAY)
    asleep = float(prefetch.stay_pages * 4096 + prefetch.table_bytes)
    asleep += prefetch.movable_pages * prefetch.pool_page_bytes
    busy, calm = (net_bytes(prefetch, replace(PLAY, think_s=think)) for think in (1.0, 1e9))
    assert pytest.approx(asleep, rel=1e-3) == calm
    assert calm < busy < net_bytes(none, PLAY)


@settings(max_examples=6)
@given(
    st.sampled_from(["none", "prefetch", "full"]),
    st.lists(st.floats(0.3, 6.0), min_size=2, max_size=3),
    st.integers(5, 40),
)
def test_more_latency_budget_never_needs_more_hosts(
    profiles: dict[str, Profile], mode: str, budgets: list[float], sandboxes: int
) -> None:
    """Whoever allows longer turns accepts every packing that was accepted before."""
    needed = [
        fit([profiles[mode]], sandboxes, SHAPE, PLAY, Bounds(turn_p99_s=budget)).hosts
        for budget in sorted(budgets)
    ]
    # No number of hosts is more than any number.
    counts = [10**9 if hosts is None else hosts for hosts in needed]
    assert sorted(counts, reverse=True) == counts


def test_fewer_hosts_with_us_than_without(profiles: dict[str, Profile]) -> None:
    """And no host of the fleet uses more than it has, no wake waits, nobody is lost."""
    none = fit([profiles["none"]], 60, SHAPE, PLAY, Bounds())
    prefetch = fit([profiles["prefetch"]], 60, SHAPE, PLAY, Bounds())
    assert none.hosts is not None
    assert prefetch.hosts is not None
    assert prefetch.hosts < none.hosts
    for found in (none, prefetch):
        assert found.simulated is not None
        assert 0 == found.simulated.above_bytes == found.simulated.unfinished
        assert 0.0 == found.simulated.memory_wait_s
        assert found.simulated.peak_bytes <= SHAPE.memory_bytes
        assert found.sandboxes_per_host * (found.hosts or 0) >= 60


def test_a_bound_that_cannot_be_kept_is_said(profiles: dict[str, Profile]) -> None:
    """There is no number of hosts then, and the reason is the last thing tried."""
    found = fit([profiles["full"]], 4, SHAPE, PLAY, Bounds(wake_p99_s=1e-6))
    assert (None, 0) == (found.hosts, found.sandboxes_per_host)
    assert "with 1 on a host: wake P99" in found.why


def test_a_host_that_is_too_small_is_refused(profiles: dict[str, Profile]) -> None:
    """A sandbox is whole when it starts, however small it gets."""
    with pytest.raises(InvalidSetting, match="host-memory is too small for one sandbox") as refusal:
        fit([profiles["full"]], 4, replace(SHAPE, memory_bytes=300 * MIB), PLAY, Bounds())
    assert "give at least" in (refusal.value.hint or "")


def test_figures_of_hosts_are_taken_together(profiles: dict[str, Profile]) -> None:
    """Turns of all hosts, memory of the fullest."""
    runs = [simulate_host(SHAPE, PLAY, [profiles["prefetch"]] * count) for count in (2, 5)]
    found = host_figures(runs, SHAPE)
    assert (5, 7, 0) == (found.sandboxes, found.finished, found.unfinished)
    assert int(runs[1].mean_bytes) == found.mean_bytes
    assert int(max(run.most_bytes for run in runs)) == found.peak_bytes
    assert sum(run.refaults for run in runs) == found.refaults

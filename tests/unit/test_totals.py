"""Sandboxes added up, put in order, and chosen."""

import pytest

from agentzip.errors import InvalidSetting
from agentzip.totals import add_up, by_memory, pages_ratio, select
from sandbox_values import MIB, a_sandbox


def test_sums_and_rates_of_several_sandboxes() -> None:
    """Rates are weighted by wakes; the P99 is that of the worst, and never a sum."""
    totals = add_up(
        [
            a_sandbox("a", wakes=1, prefetch_hit_rate=0.5, wake_p50_ms=1.0, wake_p99_ms=90.0),
            a_sandbox("b", wakes=3, prefetch_hit_rate=0.9, wake_p50_ms=4.0, pinned=True),
            a_sandbox("c", wakes=0, prefetch_hit_rate=None, wake_p50_ms=None, wake_p99_ms=None),
            a_sandbox("d", wakes=0, wake_p50_ms=9.0, phase="running", left_alone="ratio 1.1"),
        ]
    )

    assert (4, 320 * MIB, 64 * MIB) == (totals.sandboxes, totals.orig_mem, totals.stored_mem)
    assert pytest.approx(0.8) == totals.prefetch_hit_rate
    assert (4.0, 90.0) == (totals.wake_p50_ms, totals.wake_p99_ms)
    assert (1, 1) == (totals.pinned, totals.left_alone)
    assert [("running", 1), ("waiting_model", 3)] == list(totals.phases.items())


def test_none_has_no_rates() -> None:
    """Nothing is not zero."""
    totals = add_up([])

    assert (0, {}) == (totals.sandboxes, totals.phases)
    assert {None} == {
        totals.prefetch_hit_rate,
        totals.prefetch_waste,
        totals.wake_p50_ms,
        totals.wake_p99_ms,
    }


def test_a_phase_of_a_later_version_is_counted() -> None:
    """A daemon may know more phases than the command that asks it."""
    assert {"dreaming": 1} == add_up([a_sandbox(phase="dreaming")]).phases


def test_the_order_does_not_follow_where_pages_are() -> None:
    """A sandbox keeps its place when it is paged out."""
    home = a_sandbox("x", rss_bytes=100 * MIB, bytes_logical=0, bytes_pool=0)
    out = a_sandbox("x", rss_bytes=0, bytes_logical=100 * MIB)
    others = [a_sandbox("big", rss_bytes=50 * MIB), a_sandbox("a", rss_bytes=20 * MIB)]

    for one in (home, out):
        assert ["big", "a", "x"] == [found.name for found in by_memory([one, *others])]
    assert (None, 6.25) == (pages_ratio(home), pages_ratio(out))


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("agent-sandbox-*.slice", ["a", "b"]),
        ("agent-sandbox-b.slice", ["b"]),
        ("top.slice/agent-sandbox-?.slice", ["b"]),
        ("/top.slice/agent-sandbox-b.slice/", ["b"]),
        ("pid:7", ["c"]),
        ("c", ["c"]),
        ("nobody", []),
    ],
)
def test_sandboxes_are_chosen_by_scope_group_or_name(chosen: str, names: list[str]) -> None:
    """In the language of scopes."""
    sandboxes = [
        a_sandbox("a"),
        a_sandbox("b", cgroup="top.slice/agent-sandbox-b.slice"),
        a_sandbox("c", scope="pid:7", cgroup=""),
    ]

    assert names == [one.name for one in select(sandboxes, chosen)]


def test_what_selects_everything_is_refused() -> None:
    """As for scopes."""
    with pytest.raises(InvalidSetting, match="every cgroup"):
        select([], "*")

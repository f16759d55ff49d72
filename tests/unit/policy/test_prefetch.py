"""How well prefetch does, from a spared sample."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentzip.policy.prefetch import estimate

counts = st.integers(0, 10**6)


def test_the_spared_sample_speaks_for_the_prefetched_pages() -> None:
    """45 of 50 spared pages were touched: so were nine tenths of a thousand others."""
    hit_rate, waste = estimate(50, 45, 1000, 100)

    assert 0.9 == hit_rate
    assert pytest.approx(0.1) == waste


def test_nothing_seen_is_nothing_known() -> None:
    """Without a sample no share is made up; a wake without a set has hit nothing."""
    assert (None, None) == estimate(0, 0, 1000, 10)
    assert (None, None) == estimate(0, 0, 0, 0)
    assert (0.0, None) == estimate(0, 0, 0, 500)
    assert (None, 1.0) == estimate(10, 0, 100, 0)


@given(counts, counts, counts, counts)
def test_shares_are_shares(spared: int, touched: int, prefetched: int, missed: int) -> None:
    """Whatever the counts, each answer is None or from 0 to 1."""
    for share in estimate(spared, touched, prefetched, missed):
        assert share is None or 0 <= share <= 1

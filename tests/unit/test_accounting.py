"""What was gained."""

import pytest

from agentzip.accounting import gain, gain_now, percentile


def test_both_ratios_divide_by_everything_that_is_still_taken() -> None:
    """PSS that stays, pool, tables, keeper and daemon are all in the divisor."""
    result = gain(
        baseline_rss=[300, 500],
        baseline_pss=[250, 350],
        after_pss=[20, 30],
        pool_bytes=100,
        table_bytes=10,
        overhead_bytes=40,
        available_before=1000,
        available_after=1400,
    )

    assert 200 == result.cost_bytes
    assert 4.0 == result.ratio
    assert 3.0 == result.ratio_pss
    assert 400 == result.host_gain_bytes
    assert 2 == result.sandboxes


def test_a_loss_is_shown_as_a_loss() -> None:
    """A pager that costs more than it saves gets a ratio below one and a negative gain."""
    result = gain(
        baseline_rss=[100],
        baseline_pss=[100],
        after_pss=[90],
        pool_bytes=60,
        table_bytes=20,
        overhead_bytes=30,
        available_before=500,
        available_after=400,
    )

    assert 0.5 == result.ratio
    assert -100 == result.host_gain_bytes


@pytest.mark.parametrize(("pss", "after"), [([1], [1, 2]), ([1, 2], [1])])
def test_a_missing_reading_is_an_error(pss: list[int], after: list[int]) -> None:
    """Sums over different sets of sandboxes are never compared."""
    with pytest.raises(ValueError, match="one reading per sandbox"):
        gain(
            baseline_rss=[1],
            baseline_pss=pss,
            after_pss=after,
            pool_bytes=0,
            table_bytes=0,
            overhead_bytes=0,
            available_before=0,
            available_after=0,
        )


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """Nearest rank: no value between two."""
    values = [40.0, 10.0, 30.0, 20.0]

    assert [10, 20, 40, 40] == [percentile(values, percent) for percent in (0, 50, 99, 100)]


def test_a_percentile_of_nothing_is_an_error() -> None:
    """No value, no percentile."""
    with pytest.raises(ValueError, match="of 0 values"):
        percentile([], 50)


def test_the_gain_of_what_runs_needs_no_baseline() -> None:
    """Without us there would be what is there and what is out; the host gains out less cost."""
    result = gain_now(
        rss=[100, 200],
        pss=[50, 100],
        out=[300, 400],
        pool_bytes=150,
        table_bytes=20,
        overhead_bytes=30,
    )

    assert result is not None
    assert (1000 / 350, 850 / 350) == (result.ratio, result.ratio_pss)
    assert 700 - 200 == result.host_gain_bytes
    assert 2 == result.sandboxes


def test_it_is_the_gain_that_a_baseline_would_have_shown() -> None:
    """Pages that left are in neither RSS nor PSS any more: both ways give the same ratios."""
    now = gain_now(rss=[60], pss=[40], out=[140], pool_bytes=30, table_bytes=2, overhead_bytes=8)
    before = gain(
        baseline_rss=[200],
        baseline_pss=[180],
        after_pss=[40],
        pool_bytes=30,
        table_bytes=2,
        overhead_bytes=8,
        available_before=1000,
        available_after=1100,
    )

    assert before == now


def test_nothing_that_runs_has_no_gain() -> None:
    """And readings of different sandboxes are never mixed."""
    assert gain_now(rss=[], pss=[], out=[], pool_bytes=1, table_bytes=1, overhead_bytes=1) is None
    with pytest.raises(ValueError, match="shorter"):
        gain_now(rss=[1], pss=[1], out=[], pool_bytes=1, table_bytes=1, overhead_bytes=1)

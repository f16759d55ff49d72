"""
What was gained: one definition, used everywhere.

`ratio` = baseline mean RSS / (PSS that stays + pool share + tables + keeper and daemon share).
`ratio_pss` = the same with baseline PSS on top.
`host_gain` = what the whole host gained, from MemAvailable; of sandboxes that run and of which no
baseline was taken, from what is out of them.

RSS counts a page shared by ten processes ten times, PSS counts it once; so `ratio` is what an
operator who adds up RSS sees, and `ratio_pss` is what the machine sees.
Everything here is arithmetic on numbers read elsewhere: no file is opened.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Gain", "gain", "gain_now", "percentile"]


@dataclass(frozen=True, slots=True)
class Gain:
    """The gain of a set of sandboxes; sizes are sums over the set, in bytes."""

    sandboxes: int
    baseline_rss_bytes: int
    baseline_pss_bytes: int
    after_pss_bytes: int
    pool_bytes: int
    table_bytes: int
    overhead_bytes: int
    """Memory of the daemon and the keeper without pool and tables."""
    ratio: float
    ratio_pss: float
    host_gain_bytes: int

    @property
    def cost_bytes(self) -> int:
        """All memory that the set still takes: the divisor of both ratios."""
        return self.after_pss_bytes + self.pool_bytes + self.table_bytes + self.overhead_bytes


def gain(
    *,
    baseline_rss: Sequence[int],
    baseline_pss: Sequence[int],
    after_pss: Sequence[int],
    pool_bytes: int,
    table_bytes: int,
    overhead_bytes: int,
    available_before: int,
    available_after: int,
) -> Gain:
    """
    Compute the gain of a set of sandboxes.

    Args:
        baseline_rss: RSS of each sandbox before anything was paged out.
        baseline_pss: PSS of each sandbox at the same moment.
        after_pss: PSS of each sandbox with its pages out.
        pool_bytes: Memory that the pool really takes.
        table_bytes: Memory of the page tables.
        overhead_bytes: PSS of daemon and keeper, without pool and tables.
        available_before: MemAvailable at the baseline.
        available_after: MemAvailable with the pages out.

    Raises:
        ValueError: the three sequences differ in length or are empty.
    """
    count = len(baseline_rss)
    if count == 0 or len(baseline_pss) != count or len(after_pss) != count:
        raise ValueError(
            f"one reading per sandbox is needed: {count} RSS, {len(baseline_pss)} baseline PSS, "
            f"{len(after_pss)} PSS after"
        )
    # Means over the same number of sandboxes: the ratio of means is the ratio of sums.
    cost = sum(after_pss) + pool_bytes + table_bytes + overhead_bytes
    return Gain(
        sandboxes=count,
        baseline_rss_bytes=sum(baseline_rss),
        baseline_pss_bytes=sum(baseline_pss),
        after_pss_bytes=sum(after_pss),
        pool_bytes=pool_bytes,
        table_bytes=table_bytes,
        overhead_bytes=overhead_bytes,
        ratio=sum(baseline_rss) / cost if cost else 0.0,
        ratio_pss=sum(baseline_pss) / cost if cost else 0.0,
        host_gain_bytes=available_after - available_before,
    )


def gain_now(
    *,
    rss: Sequence[int],
    pss: Sequence[int],
    out: Sequence[int],
    pool_bytes: int,
    table_bytes: int,
    overhead_bytes: int,
) -> Gain | None:
    """
    Compute the gain of sandboxes that run, without a baseline taken before.

    A page that is out was private memory of its process, so without us a sandbox would have what
    it has now and what is out of it.  The host then gains what is out, less all that holds it.

    Args:
        rss: RSS of each sandbox now.
        pss: PSS of each sandbox now.
        out: Memory of each sandbox that is out, before encoding.
        pool_bytes: Memory that the pool really takes.
        table_bytes: Memory of the page tables.
        overhead_bytes: PSS of daemon and keeper, without pool and tables.

    Returns:
        None if there is no sandbox.

    Raises:
        ValueError: the three sequences differ in length.
    """
    if not rss and not pss and not out:
        return None
    return gain(
        baseline_rss=[home + away for home, away in zip(rss, out, strict=True)],
        baseline_pss=[home + away for home, away in zip(pss, out, strict=True)],
        after_pss=pss,
        pool_bytes=pool_bytes,
        table_bytes=table_bytes,
        overhead_bytes=overhead_bytes,
        available_before=0,
        available_after=sum(out) - pool_bytes - table_bytes - overhead_bytes,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """
    The smallest value that at least `percent` of all values do not exceed (nearest rank).

    Nearest rank, because it returns a value that was measured and never one between two.

    Raises:
        ValueError: there is no value, or the percentage is outside 0..100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"no percentile {percent} of {len(values)} values")
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(int(rank) - 1, 0)]

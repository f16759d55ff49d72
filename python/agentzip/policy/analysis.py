"""
Is it worth paging a process out: readings in, verdict out.

The ratio is that of `agentzip.accounting`, end to end: what the process takes now (RSS), divided by
what it would take (PSS that stays, pool, page tables, a share of the pager's own memory).  Memory
that may not leave is in both, so a process of little but libraries is told no, however well the
rest compresses.

`go` from 2.5x, `try` from 2x, else `no`; `no` as well on a host whose processors are saturated:
encoding and faults would wait with everybody else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from agentzip.units import format_bytes

__all__ = ["GO_RATIO", "TRY_RATIO", "HostLoad", "Readings", "Verdict", "combine", "judge"]

GO_RATIO = 2.5
TRY_RATIO = 2.0

_PSS_RATIO_MIN = 1.5
"""Memory that is shared counts in RSS and costs the machine next to nothing: what gains less by PSS
is left alone, whatever its ratio.  The same bound as for pages that do not pay."""

_WAITING_MAX = 0.5
"""Saturated: for more than half of the last minute somebody waited for a processor ..."""

_BUSY_MAX = 0.95
"""... or, where the kernel does not tell, hardly a processor was ever idle while we looked."""

_GAIN_MIN = 1.02
"""A dictionary that gains less is not used, as in the daemon."""

Decision = Literal["go", "try", "no"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """One process or several, as a sample of their memory shows them; sizes in bytes."""

    rss_bytes: int
    pss_bytes: int
    leaving_pss_bytes: int
    """Of `pss_bytes`, what would leave."""
    pages: int
    """Pages that would leave."""
    pool_bytes: int
    pool_bytes_dictionary: int
    table_bytes: int
    """Page table of the pager."""
    dictionary_bytes: int
    """0 if none was tried."""
    stays: tuple[tuple[str, int], ...] = ()
    """Why memory stays, and how much (RSS)."""
    overhead_bytes: int = 0
    """Share of daemon and keeper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoad:
    """The processors of the host; None for what the kernel does not tell."""

    waiting_share: float | None = None
    busy_share: float | None = None

    @property
    def saturated(self) -> bool:
        """Whether there is no processor time to encode with."""
        if self.waiting_share is not None:
            return self.waiting_share > _WAITING_MAX
        return self.busy_share is not None and self.busy_share > _BUSY_MAX


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and the figures that it follows from."""

    decision: Decision
    ratio: float
    ratio_pss: float
    ratio_dictionary: float | None
    """With a dictionary of the process's own; None if none was tried or it gains too little."""
    stays_bytes: int
    """PSS that would stay."""
    pool_bytes: int
    table_bytes: int
    saved_bytes: int
    """PSS now, less all that it would take."""
    why: str


def combine(several: Iterable[Readings]) -> Readings:
    """Several processes as one; each has a dictionary of its own here."""
    found = list(several)
    stays: dict[str, int] = {}
    for reason, size in (stay for readings in found for stay in readings.stays):
        stays[reason] = stays.get(reason, 0) + size
    return Readings(
        rss_bytes=sum(one.rss_bytes for one in found),
        pss_bytes=sum(one.pss_bytes for one in found),
        leaving_pss_bytes=sum(one.leaving_pss_bytes for one in found),
        pages=sum(one.pages for one in found),
        pool_bytes=sum(one.pool_bytes for one in found),
        pool_bytes_dictionary=sum(_smaller_pool(one) for one in found),
        table_bytes=sum(one.table_bytes for one in found),
        dictionary_bytes=sum(one.dictionary_bytes for one in found if _gains(one)),
        stays=tuple(sorted(stays.items(), key=lambda stay: -stay[1])),
        overhead_bytes=sum(one.overhead_bytes for one in found),
    )


def judge(readings: Readings, load: HostLoad) -> Verdict:
    """Say go, try or no."""
    stays = max(readings.pss_bytes - readings.leaving_pss_bytes, 0)
    beside = stays + readings.table_bytes + readings.overhead_bytes
    cost = beside + readings.pool_bytes
    ratio = readings.rss_bytes / cost if cost else 0.0
    ratio_pss = readings.pss_bytes / cost if cost else 0.0
    decision: Decision = "go" if ratio >= GO_RATIO else "try" if ratio >= TRY_RATIO else "no"
    if load.saturated or ratio_pss < _PSS_RATIO_MIN:
        decision = "no"
    with_dictionary = None
    if _gains(readings):
        smaller = beside + readings.pool_bytes_dictionary + readings.dictionary_bytes
        with_dictionary = readings.rss_bytes / smaller
    return Verdict(
        decision=decision,
        ratio=ratio,
        ratio_pss=ratio_pss,
        ratio_dictionary=with_dictionary,
        stays_bytes=stays,
        pool_bytes=readings.pool_bytes,
        table_bytes=readings.table_bytes,
        saved_bytes=readings.pss_bytes - cost,
        why=_why(readings, load, (ratio, ratio_pss), with_dictionary),
    )


def _gains(readings: Readings) -> bool:
    """Whether a dictionary would be used, and pays for its own memory."""
    if not readings.dictionary_bytes:
        return False
    smaller = readings.pool_bytes_dictionary
    return (
        smaller * _GAIN_MIN <= readings.pool_bytes
        and smaller + readings.dictionary_bytes < readings.pool_bytes
    )


def _smaller_pool(readings: Readings) -> int:
    return readings.pool_bytes_dictionary if _gains(readings) else readings.pool_bytes


def _why(
    readings: Readings, load: HostLoad, ratios: tuple[float, float], with_dictionary: float | None
) -> str:
    ratio, ratio_pss = ratios
    if not readings.rss_bytes:
        return "it has no memory"
    stays = max(readings.rss_bytes - readings.leaving_pss_bytes, 0)
    leaving = readings.pages * 4096
    gain = (
        f"{format_bytes(readings.leaving_pss_bytes)} of {format_bytes(readings.rss_bytes)} may "
        f"leave and would take {format_bytes(readings.pool_bytes)}"
    )
    if leaving and readings.pool_bytes:
        gain += f" ({leaving / readings.pool_bytes:.1f}x)"
    parts = [gain]
    if load.saturated:
        parts.insert(0, f"the processors are saturated ({_load_text(load)})")
    if ratio >= TRY_RATIO and ratio_pss < _PSS_RATIO_MIN:
        parts.append(f"most of it is shared with others: for the machine {ratio_pss:.2f}x")
    elif ratio < GO_RATIO and readings.stays and stays * GO_RATIO > readings.rss_bytes:
        reason, size = readings.stays[0]
        share = size / readings.rss_bytes
        parts.append(f"{share:.0%} of it stays: {reason}")
    elif ratio < GO_RATIO and leaving and readings.pool_bytes * GO_RATIO > leaving:
        parts.append("what may leave compresses badly")
    if with_dictionary is not None:
        parts.append(f"{with_dictionary:.2f}x with a dictionary of its own")
    return "; ".join(parts)


def _load_text(load: HostLoad) -> str:
    if load.waiting_share is not None:
        return f"somebody waited for one during {load.waiting_share:.0%} of the last minute"
    return f"{load.busy_share or 0:.0%} busy"

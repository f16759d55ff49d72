"""
Which pages leave now: readings in, plan out.

`candidates` says what may leave and what it is worth; here stands how much of it the host needs.
Between the watermarks only the coldest pages go; from the start watermark on the best are taken
first, by gain per cost, until the host is below its stop watermark.  A tick is bounded, and a pool
that is nearly full takes nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite

from agentzip.policy.candidates import (
    ENDING,
    Group,
    Leave,
    Part,
    Rules,
    SandboxState,
    consider,
    judge_ratio,
    keep_pages,
    totals,
    wake_cost_s,
    work,
)
from agentzip.policy.prices import PAGE_BYTES, Costs, Host, Prices, Watermarks, reclaims
from agentzip.units import format_bytes

__all__ = [
    "Costs",
    "Host",
    "Leave",
    "PageOut",
    "Part",
    "Plan",
    "PlannerState",
    "Rules",
    "SandboxState",
    "Watermarks",
    "judge_ratio",
    "keep_pages",
    "plan",
    "wake_cost_s",
]

_ENDING_PRICE = 0.25
"""Least price of the memory of what ends: it is needed by nobody, so it leaves even while the host
has enough, if that costs next to nothing."""

_POOL_FULL_SHARE = 0.95
"""From here on nothing more leaves: pages of the pool that change place need room, too."""


@dataclass(frozen=True, slots=True)
class PlannerState:
    """What one tick leaves to the next."""

    reclaiming: bool = False
    """Memory is being won back since the host was above its start watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOut:
    """Page this much of a process out: of the rest first, then of the working set's coolest end."""

    sandbox: str
    pid: int
    keep_pages: int
    """Of the resident pages of the learned set, the hottest, which stay."""
    pages: int
    """To move at most; restless pages not among them."""
    gain: float
    cost: float
    """Both in byte-seconds of memory."""
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in this tick, the best first; and what is left as it is, by name and pid."""

    page_outs: tuple[PageOut, ...]
    leaves: tuple[Leave, ...]
    state: PlannerState


@dataclass(slots=True)
class _Room:
    """What may still leave in this tick."""

    pages: int
    pool_bytes: float
    need_bytes: float
    """Until the host is below its stop watermark."""
    between_pages: float
    """Of the coldest pages, while the host is between its watermarks."""

    def take(self, group: Group) -> int:
        """Pages of a group that fit, and book them; what ends leaves whatever the host needs."""
        worth = group.worth
        pages = min(group.pages, self.pages)
        if worth.pool_bytes > 0:
            pages = min(pages, int(self.pool_bytes / worth.pool_bytes))
        ending = group.sandbox.phase in ENDING
        if not ending and isfinite(self.between_pages):
            pages = min(pages, int(self.between_pages))
        if not ending and isfinite(self.need_bytes):
            pages = min(pages, ceil(self.need_bytes / worth.saved_bytes))
        pages = max(pages, 0)
        self.pages -= pages
        self.pool_bytes -= pages * worth.pool_bytes
        if not ending:
            self.between_pages -= pages
            self.need_bytes -= pages * worth.saved_bytes
        return pages


def plan(sandboxes: Sequence[SandboxState], host: Host, rules: Rules, state: PlannerState) -> Plan:
    """Decide for one tick; the order in which the sandboxes are given makes no difference."""
    reclaiming = reclaims(host, rules.watermarks, before=state.reclaiming)
    prices = Prices.of(host, rules.watermarks, reclaiming=reclaiming)
    ending_prices = replace(prices, memory=max(prices.memory, _ENDING_PRICE))
    full, enough = _closed(host, rules.watermarks, prices)
    groups: list[Group] = []
    leaves: list[Leave] = []
    for sandbox in sandboxes:
        ending = sandbox.phase in ENDING
        closed = full or ("" if ending else enough)
        paying, left = consider(sandbox, ending_prices if ending else prices, closed, rules)
        groups += paying
        leaves += left
    between = not reclaiming and prices.memory > 0
    groups.sort(key=_coldest_first if between else _best_first)
    room = _room(sandboxes, host, rules, reclaiming=reclaiming, between=between)
    taken: dict[tuple[str, int], list[tuple[Group, int]]] = {}
    for group in groups:
        chosen = taken.setdefault((group.sandbox.name, group.part.pid), [])
        chosen.append((group, room.take(group)))
    page_outs = []
    for chosen in taken.values():
        if any(pages for _, pages in chosen):
            page_outs.append(_page_out(chosen, prices, rules))
        else:
            leaves.append(_later(chosen, prices, rules, between=between))
    leaves.sort(key=lambda leave: (leave.sandbox, leave.pid))
    return Plan(tuple(page_outs), tuple(leaves), PlannerState(reclaiming))


def _closed(host: Host, watermarks: Watermarks, prices: Prices) -> tuple[str, str]:
    """Why nothing leaves whatever it is, and why nothing leaves but what ends; empty if not so."""
    pool_share = host.pool_bytes / host.pool_bytes_max if host.pool_bytes_max else 1.0
    full = enough = ""
    if pool_share >= _POOL_FULL_SHARE:
        full = f"the pool is {pool_share:.0%} full, from {_POOL_FULL_SHARE:.0%} on nothing leaves"
    if prices.memory <= 0:
        enough = (
            f"the host uses {host.used_share:.0%} of its memory, "
            f"below {watermarks.stop:.0%} nothing leaves"
        )
    return full, enough


def _room(
    sandboxes: Iterable[SandboxState], host: Host, rules: Rules, *, reclaiming: bool, between: bool
) -> _Room:
    need = between_pages = inf
    if reclaiming:
        need = (host.used_share - rules.watermarks.stop) * host.memory_bytes
    elif between:
        out = sum(sandbox.pages_out for sandbox in sandboxes)
        here = sum(
            part.working_set_pages + part.rest_pages + part.restless_pages
            for sandbox in sandboxes
            for part in sandbox.parts
        )
        between_pages = rules.watermarks.between_share * (out + here) - out
    pool_room = _POOL_FULL_SHARE * host.pool_bytes_max - host.pool_bytes
    return _Room(rules.pages_per_tick_max, pool_room, need, between_pages)


def _best_first(group: Group) -> tuple[float | str, ...]:
    per_cost = group.worth.gain / group.worth.cost if group.worth.cost else inf
    return (-per_cost, group.in_working_set, group.sandbox.name, group.part.pid)


def _coldest_first(group: Group) -> tuple[float | str, ...]:
    part = group.part
    # What waits for its user is called warm for the disk's sake, and is as cold as any.
    warm = part.temperature != "cold" and group.sandbox.phase != "waiting_user"
    return (group.in_working_set, warm, -part.quiet_s, group.sandbox.name, part.pid)


def _page_out(chosen: Sequence[tuple[Group, int]], prices: Prices, rules: Rules) -> PageOut:
    group = chosen[0][0]
    sandbox, part = group.sandbox, group.part
    pages = sum(count for _, count in chosen)
    keep = part.working_set_pages - sum(count for kind, count in chosen if kind.in_working_set)
    gain, cost = totals(chosen, prices, rules)
    saved = sum(count * kind.worth.saved_bytes for kind, count in chosen)
    notice = f"is said {sandbox.notice_s:.1f} s before and " if sandbox.notice_s else ""
    reason = (
        f"{format_bytes(pages * PAGE_BYTES)} at ratio {part.ratio:.1f} save {format_bytes(saved)} "
        f"for {group.rest_s:.1f} s at price {group.price:.2f}: {work(gain)} gained for "
        f"{work(cost)}; {keep} of {part.working_set_pages} pages of the working set stay, "
        f"the wake {notice}may cost {sandbox.latency_target_s * 1000:.0f} ms"
    )
    return PageOut(
        sandbox=sandbox.name,
        pid=part.pid,
        keep_pages=keep,
        pages=pages,
        gain=gain,
        cost=cost,
        reason=reason,
    )


def _later(
    chosen: Sequence[tuple[Group, int]], prices: Prices, rules: Rules, *, between: bool
) -> Leave:
    group = chosen[0][0]
    gain, cost = totals(((kind, kind.pages) for kind, _ in chosen), prices, rules)
    limit = f"this tick's {rules.pages_per_tick_max} pages, the host's need and the pool's room"
    if between:
        limit = f"the coldest {rules.watermarks.between_share:.0%} of all pages, and no more leave"
    return Leave(
        sandbox=group.sandbox.name,
        pid=group.part.pid,
        reason=f"it would pay, but others go first within {limit}",
        gain=gain,
        cost=cost,
    )

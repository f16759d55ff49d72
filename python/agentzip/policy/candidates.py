"""
Which pages of a sandbox may leave, and what they are worth.

Rules come first: who is pinned, starting, busy or hot stays whatever it is worth.  Then the pages
of each process are weighed in two kinds: those of the learned *working set*, which the next wake
will need, and the *rest*, of which a few come back.

How late a wake may be is not a matter of price.  `latency_target` bounds it, so the hottest pages
of the working set stay until bringing home the others takes no longer than that and the notice
that it comes with; nothing that is weighed here may break that bound.  Within it a delay costs
nothing: the operator has granted it, and priced as well it would keep pages that the target lets
go, so that no target of an ordinary wait was ever the reason for anything.  A larger target lets
more pages leave, never fewer, and so does a longer notice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

from agentzip.policy.prices import Costs, Pages, Prices, Watermarks, Worth, weigh
from agentzip.policy.temperature import Temperature
from agentzip.sandboxes import WAITS
from agentzip.units import format_bytes

__all__ = [
    "ENDING",
    "Group",
    "Leave",
    "Part",
    "Rules",
    "SandboxState",
    "consider",
    "judge_ratio",
    "keep_pages",
    "totals",
    "wake_cost_s",
    "work",
]

ENDING = ("finishing", "done")
"""Phases after which nobody comes back."""

_ENDING_REST_S = 60.0
"""Least time that memory of what ends is expected to stand around."""

_LOOK_S = 2.0
"""A process that fell quiet this much later than its sandbox began to wait began with it: looks are
a second or so apart."""

_RATIO_MIN = 1.5
"""Sandboxes whose pages become no smaller than this are left alone ..."""

_RATIO_PAGES_MIN = 4000
"""... when so many of them were encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of a sandbox."""

    pid: int
    working_set_pages: int
    """Of the learned set, resident: would be needed at the wake."""
    rest_pages: int
    """Other resident pages that may move."""
    restless_pages: int
    """Touched while it waits: they stay."""
    quiet_s: float
    """How long it has been quiet; 0 while it works."""
    temperature: Temperature
    """By its touches since it is quiet: what it touched while it worked is its working set."""
    clean_share: float
    """Of its pages, those whose copy in the pool is still good: free to leave."""
    ratio: float
    """Expected, or measured if known."""
    paged_out_s: float | None
    """Since its last page out."""
    working_set_out: int = 0
    """Of the learned set, out already: counts towards what the wake costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxState:
    """One sandbox, as the planner sees it."""

    name: str
    phase: str
    expected_rest_s: float
    latency_target_s: float
    announced: bool
    """Whether its wakes come with a hint before, so that pages come home in batches."""
    notice_s: float = 0.0
    """How long before it goes on it says so: what comes home in this time delays nobody."""
    parts: tuple[Part, ...]
    pages_out: int
    pinned: bool
    min_wait_s: float
    """Waits shorter than this did not pay (`breakers`)."""
    left_alone: str
    """Why nothing is to leave; empty if it may."""
    phase_age_s: float = inf
    """How long the phase lasts; a process that is quiet for clearly longer slept through a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an operator sets, and what was measured."""

    watermarks: Watermarks = field(default_factory=Watermarks)
    costs: Costs = field(default_factory=Costs)
    pages_per_tick_max: int = 65_536
    """256 MiB, about a second of encoding: most sandboxes leave in one page out.  Two of them stop
    the program twice, and what its wake needs is learned from the last one alone.  Who wakes does
    not wait for it: a page out ends with the step at work."""
    quiet_running_s: float = 10.0
    """A process may leave after this long while others of its sandbox work, who may call it any
    time: `policy.warm_threshold_ms`."""
    few_pages: int = 256
    """Fewer than these are no reason to borrow a thread again ..."""
    again_s: float = 10.0
    """... so soon after the last page out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Considered and not done; gain and cost are 0 where a rule said no before they mattered."""

    sandbox: str
    pid: int
    reason: str
    gain: float = 0.0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Pages of one kind of one process, weighed."""

    sandbox: SandboxState
    part: Part
    in_working_set: bool
    pages: int
    worth: Worth
    """Per page."""
    rest_s: float
    """How long they are expected to stay out."""
    price: float
    """Of memory, that they were weighed with."""


def consider(
    sandbox: SandboxState, prices: Prices, closed: str, rules: Rules
) -> tuple[list[Group], list[Leave]]:
    """
    Sort the pages of one sandbox into what would pay and what is left.

    Args:
        sandbox: Its state.
        prices: Of this tick.
        closed: Why nothing leaves at the moment; empty if something may.
        rules: What holds.
    """
    forbidden = _sandbox_stays(sandbox) or closed
    restore_s = _restore_s(sandbox.announced, rules.costs)
    target_s = inf if sandbox.phase == "done" else sandbox.latency_target_s
    out = sum(part.working_set_out for part in sandbox.parts)
    groups: list[Group] = []
    leaves: list[Leave] = []
    for part in sorted(sandbox.parts, key=lambda part: part.pid):
        if not part.working_set_pages and not part.rest_pages:
            continue
        reason = forbidden or _part_stays(sandbox, part, rules)
        if reason:
            leaves.append(Leave(sandbox=sandbox.name, pid=part.pid, reason=reason))
            continue
        keep = 0
        if isfinite(target_s):
            wake_s = target_s + sandbox.notice_s
            keep = keep_pages(part.working_set_pages, wake_s, restore_s, out)
        kinds = _kinds(sandbox, part, keep, prices, rules)
        paying = [group for group in kinds if group.worth.pays]
        # Booked even if it is left below for being little: what one process may have must not
        # depend on another's, or a larger target could let less leave.
        out += sum(group.pages for group in paying if group.in_working_set)
        gain, cost = totals(((group, group.pages) for group in paying or kinds), prices, rules)
        reason = _not_worth(sandbox, part, kinds, paying, (gain, cost), rules)
        if reason:
            leaves.append(
                Leave(sandbox=sandbox.name, pid=part.pid, reason=reason, gain=gain, cost=cost)
            )
        else:
            groups += paying
    return groups, leaves


def keep_pages(working_set_pages: int, wake_s: float, restore_s: float, pages_out: int = 0) -> int:
    """
    The fewest pages of a working set that must stay so that a wake keeps its bound.

    Args:
        working_set_pages: Resident.
        wake_s: What the wake may take.
        restore_s: What one page takes to come home.
        pages_out: Pages of the set that are out already.
    """
    # The quotient may be off in its last place; the bound may not.
    about = int(wake_s / restore_s)
    may_be_out = max(out for out in (about - 1, about, about + 1) if out * restore_s <= wake_s)
    return max(0, working_set_pages - max(0, may_be_out - pages_out))


def wake_cost_s(pages_out: int, announced: bool, costs: Costs) -> float:
    """Seconds that a wake is expected to take with so many pages of its working set out."""
    return pages_out * _restore_s(announced, costs)


def judge_ratio(ratio: float, pages: int) -> str:
    """Why a sandbox is left alone whose pages became `ratio` times smaller; empty if it is not."""
    if pages >= _RATIO_PAGES_MIN and ratio < _RATIO_MIN:
        return f"ratio {ratio:.1f} after {pages} pages, below {_RATIO_MIN} it does not pay"
    return ""


def _sandbox_stays(sandbox: SandboxState) -> str:
    """Why all of a sandbox stays; empty if it may leave."""
    if sandbox.pinned:
        return "it is pinned"
    if sandbox.phase == "resuming":
        return "it is about to go on"
    return sandbox.left_alone or ("it is starting" if sandbox.phase == "starting" else "")


def _part_stays(sandbox: SandboxState, part: Part, rules: Rules) -> str:
    """Why all of a process stays; empty if it may be weighed."""
    if part.quiet_s <= 0:
        return "it is busy"
    asleep_s = _asleep_s(sandbox, rules)
    if part.quiet_s < asleep_s:
        return (
            f"quiet for {part.quiet_s:.1f} s while others of its sandbox work, "
            f"before {asleep_s:.1f} s it may be called any time"
        )
    if part.temperature == "hot":
        return "it is hot: touched twice within the hot threshold"
    rest_s = _rest_s(sandbox, part, rules)
    if rest_s < sandbox.min_wait_s:
        return (
            f"expected to wait for {rest_s:.1f} s more, "
            f"under {sandbox.min_wait_s:.1f} s it did not pay before"
        )
    return judge_ratio(part.ratio, sandbox.pages_out)


def _asleep_s(sandbox: SandboxState, rules: Rules) -> float:
    """How long a process must be quiet; where all wait together there is nothing to wait for."""
    if sandbox.phase == "running":
        return rules.quiet_running_s
    if sandbox.phase in WAITS and any(part.quiet_s <= 0 for part in sandbox.parts):
        return min(rules.quiet_running_s, max(sandbox.phase_age_s - _LOOK_S, 0.0))
    return 0.0


def _rest_s(sandbox: SandboxState, part: Part, rules: Rules) -> float:
    """How long pages of a process are expected to stay out."""
    if sandbox.phase in ENDING:
        return max(sandbox.expected_rest_s, _ENDING_REST_S, sandbox.min_wait_s)
    if sandbox.phase not in WAITS:
        return part.quiet_s
    if part.quiet_s > sandbox.phase_age_s + rules.quiet_running_s:
        return max(sandbox.expected_rest_s, part.quiet_s)
    return sandbox.expected_rest_s


def _restore_s(announced: bool, costs: Costs) -> float:
    return costs.restore_batched_s if announced else costs.restore_fault_s


def _kinds(
    sandbox: SandboxState, part: Part, keep: int, prices: Prices, rules: Rules
) -> list[Group]:
    """The kinds of pages that a process has, weighed."""
    costs = rules.costs
    rest_s = _rest_s(sandbox, part, rules)
    chance = costs.return_chance_cold if part.temperature == "cold" else costs.return_chance_warm
    # What is done has no wake to come.
    wakes = float(sandbox.phase != "done")
    restore_s = _restore_s(sandbox.announced, costs)
    working = part.working_set_pages - keep
    kinds = [
        (False, part.rest_pages, chance * wakes, costs.restore_fault_s, costs.restore_fault_s),
        (True, working, wakes, restore_s, 0.0),
    ]
    groups = []
    for in_working_set, pages, return_chance, work_s, delay_s in kinds:
        if pages > 0:
            kind = Pages(
                ratio=part.ratio,
                clean_share=part.clean_share,
                rest_s=rest_s,
                return_chance=return_chance,
                restore_s=work_s,
                delay_s=delay_s,
                costs=costs,
            )
            worth = weigh(kind, prices)
            groups.append(Group(sandbox, part, in_working_set, pages, worth, rest_s, prices.memory))
    return groups


def totals(
    chosen: Iterable[tuple[Group, int]], prices: Prices, rules: Rules
) -> tuple[float, float]:
    """Gain and cost of one page out of so many pages of each kind."""
    gain, cost = 0.0, rules.costs.page_out_s * prices.processor
    for group, pages in chosen:
        gain += pages * group.worth.gain
        cost += pages * group.worth.cost
    return gain, cost


def _not_worth(
    sandbox: SandboxState,
    part: Part,
    kinds: Sequence[Group],
    paying: Sequence[Group],
    gain_cost: tuple[float, float],
    rules: Rules,
) -> str:
    """Why a page out of a process does not pay; empty if it does."""
    gain, cost = gain_cost
    if not kinds:
        return (
            f"all {part.working_set_pages} pages are needed at the wake, "
            f"which may cost {sandbox.latency_target_s * 1000:.0f} ms"
        )
    if not paying or gain <= cost:
        return (
            f"{work(gain)} gained in {kinds[0].rest_s:.1f} s at price {kinds[0].price:.2f} "
            f"do not pay for {work(cost)} of work and delay"
        )
    pages = sum(group.pages for group in paying)
    again = part.paged_out_s is not None and part.paged_out_s < rules.again_s
    if again and pages < rules.few_pages:
        return f"only {pages} pages, {part.paged_out_s:.1f} s after the last page out"
    return ""


def work(byte_seconds: float) -> str:
    """Byte-seconds, as people read them."""
    return f"{format_bytes(byte_seconds)} s"

"""
When stored pages are worth more work: from warm to cold to frozen, from the pool to the disk.

The rule, in one unit (byte-seconds of memory):

    gain = bytes saved x expected rest of the wait
    cost = processor seconds x price of a processor second

A move is made when gain >= cost.  A processor second costs as much memory-time as it keeps from
others: the memory that the host has per core, while the processors are busy, and a small part of
that while they are idle.  The expected rest of a wait is what the sandbox says, or as long as it
has waited already (the usual estimate for waits without a typical length).

Which bytes a move saves and what it costs per page are the measured figures of
`agentzip bench encode`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "COSTS",
    "Background",
    "Compact",
    "HostState",
    "Move",
    "Rules",
    "Spill",
    "TargetState",
    "TierCost",
    "cold_dictionary_bytes",
    "expected_rest",
    "is_worth",
    "pays_for_itself",
    "plan",
]

Tier = Literal["warm", "cold", "frozen"]

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TierCost:
    """What a move into a tier takes and gives."""

    cpu_s_per_page: float
    saved_share: float
    """Part of the encoded bytes that the move saves."""
    cpu_s_fixed: float
    """Training and preparing, whatever the size."""


COSTS: dict[Tier, TierCost] = {
    "cold": TierCost(220e-6, 0.30, 3.0),
    "frozen": TierCost(1600e-6, 0.06, 0.1),
}
"""From the tier before it; encoding-study sections 3 and 6, `agentzip bench encode`."""

_COLD_SHARE = 512
_COLD_BYTES = range(64 << 10, (1 << 20) + 1)

_IDLE_PRICE = 0.02
"""Price of a processor second that nobody else wants, as part of that of a busy one: power, caches
and memory bandwidth are not free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """One target, as the planner sees it."""

    pid: int
    domain: str
    image: str
    tier: Tier
    """The lowest tier that a pass has completed since the last page out."""
    pages_out: int
    bytes_pool: int
    idle_s: float
    """Since the last page out or refault."""
    expected_wait_s: float | None = None
    """Of the whole wait, from what the sandbox said or its history; None if nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """The host and the pool, as the planner sees them."""

    memory_bytes: int
    cores: int
    cpu_idle_share: float
    """Of all processors, over the last tick; 0 to 1."""
    pool_bytes: int
    pool_bytes_max: int
    pool_waste_bytes: int
    disk_bytes_free: int
    """Room in the swap file; 0 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an operator sets."""

    cold_after_s: float = 30.0
    """`policy.cold_grace_period`: stored pages younger than this are left as they are."""
    frozen_after_s: float = 600.0
    budget_s: float = 0.25
    """Processor time of one tick for all background work."""
    reclaim_threshold: float = 0.80
    """`pool.reclaim_threshold`: above this fill the coldest pages go to the disk."""
    defrag: bool = True
    """`pool.defrag`."""
    waste_share_max: float = 0.05
    """Compaction begins when the pool wastes more than this part of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """How much background work there is, and with which dictionaries."""

    rules: Rules = field(default_factory=Rules)
    dictionary: Literal["auto", "prebuilt", "none"] | tuple[str, ...] = "auto"
    """
    `auto`: trained ones, and prebuilt ones until there are any; `prebuilt`: only those; `none`; or
    names of prebuilt ones.
    """


@dataclass(frozen=True, slots=True)
class Move:
    """Bring the stored pages of a target into a tier."""

    pid: int
    tier: Tier
    peer: int | None
    """A target of the same domain and image whose pages may lead; None for the first."""
    budget_s: float


@dataclass(frozen=True, slots=True)
class Compact:
    """Give half-empty pool memory back."""

    budget_s: float


@dataclass(frozen=True, slots=True)
class Spill:
    """Write stored pages of a target to the disk."""

    pid: int
    pages_max: int


Action = Move | Compact | Spill


def expected_rest(target: TargetState) -> float:
    """Seconds that the wait is expected to go on."""
    if target.expected_wait_s is not None:
        # An announced wait that is over goes on like one that was not announced.
        rest = target.expected_wait_s - target.idle_s
        return rest if rest > 0 else target.idle_s
    return target.idle_s


def is_worth(target: TargetState, tier: Tier, host: HostState) -> bool:
    """Whether the move gains more memory-time than its processor time costs."""
    cost = COSTS[tier]
    saved = target.bytes_pool * cost.saved_share
    cpu_s = cost.cpu_s_fixed + cost.cpu_s_per_page * target.pages_out
    busy = 1.0 - min(max(host.cpu_idle_share, 0.0), 1.0)
    price = host.memory_bytes / host.cores * max(busy, _IDLE_PRICE)
    return saved * expected_rest(target) >= cpu_s * price


def cold_dictionary_bytes(memory_bytes: int) -> int:
    """
    How large a process's own dictionary should be: a 512th of its memory, 64 KiB to 1 MiB.

    It is then a hundredth of what is left of the process.  Twice that saves 2 % of the encoded
    bytes and takes as much (json -0.4, python -0.3, node -0.9 % net); one for all sandboxes of an
    image costs 9 to 16 % of the ratio.
    """
    return min(max(memory_bytes // _COLD_SHARE, _COLD_BYTES.start), _COLD_BYTES.stop - 1)


def pays_for_itself(gain: float, encoded_bytes: int, dictionary_bytes: int) -> bool:
    """
    Whether a dictionary saves more than the memory that it takes.

    Args:
        gain: Encoded size of held-out pages without it, divided by that with it.
        encoded_bytes: Bytes of the pages it is meant for, encoded without it.
        dictionary_bytes: Its size.
    """
    if gain <= 1.0:
        return False
    return encoded_bytes * (1.0 - 1.0 / gain) > dictionary_bytes


def plan(targets: Sequence[TargetState], host: HostState, rules: Rules) -> list[Action]:
    """Background work of one tick, most urgent first; its budgets sum up to the rules' budget."""
    actions: list[Action] = [*_spills(targets, host, rules)]
    left = rules.budget_s
    waste_max = host.pool_bytes * rules.waste_share_max
    if rules.defrag and host.pool_waste_bytes > max(waste_max, 1 << 20):
        actions.append(Compact(left / 4))
        left -= left / 4
    move = _best_move(targets, host, rules)
    if move is not None:
        target, tier = move
        actions.append(Move(target.pid, tier, _peer(target, targets), left))
    return actions


def _spills(targets: Iterable[TargetState], host: HostState, rules: Rules) -> Iterable[Spill]:
    """The longest idle targets' pages, until the pool is below the threshold again."""
    excess = host.pool_bytes - host.pool_bytes_max * rules.reclaim_threshold
    if excess <= 0 or host.disk_bytes_free <= 0:
        return
    room = float(host.disk_bytes_free)
    for target in sorted(targets, key=lambda target: -target.idle_s):
        if excess <= 0 or room <= 0 or target.idle_s < rules.cold_after_s:
            return
        if not target.bytes_pool:
            continue
        share = min(excess, room, target.bytes_pool) / target.bytes_pool
        yield Spill(target.pid, max(1, round(target.pages_out * share)))
        excess -= target.bytes_pool * share
        room -= target.bytes_pool * share


def _best_move(
    targets: Iterable[TargetState], host: HostState, rules: Rules
) -> tuple[TargetState, Tier] | None:
    """The move of the target that has waited longest; first all cold, then any frozen."""
    waiting = sorted(targets, key=lambda target: -target.idle_s)
    steps: list[tuple[Tier, Tier, float]] = [
        ("warm", "cold", rules.cold_after_s),
        ("cold", "frozen", rules.frozen_after_s),
    ]
    for current, tier, after_s in steps:
        for target in waiting:
            due = target.tier == current and target.idle_s >= after_s and target.pages_out
            if due and is_worth(target, tier, host):
                return target, tier
    return None


def _peer(target: TargetState, targets: Iterable[TargetState]) -> int | None:
    """The first cold target of the same domain and image: one template for all of them."""
    kin = [
        other.pid
        for other in targets
        if other.pid != target.pid
        and other.tier != "warm"
        and (other.domain, other.image) == (target.domain, target.image)
    ]
    return min(kin, default=None)

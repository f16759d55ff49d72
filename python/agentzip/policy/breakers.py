"""
What stops the planner where experience says that it errs.

Three breakers.  Per sandbox: waits in which a page out did not pay raise the shortest wait that is
worth one, quickly; waits that did pay lower it, slowly, and after each failure more slowly.  Per
host: a storm of refaults cuts what a tick may page out, at once, and gives it back step by step.
And wakes are let in by the memory that there is, in the order in which they came.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from agentzip.policy.prices import PAGE_BYTES

__all__ = [
    "BreakerState",
    "Cycle",
    "Storm",
    "StormRates",
    "Thresholds",
    "Wake",
    "admit",
    "after_cycle",
    "after_tick",
    "paid",
]

_LOWER = 0.7
"""What a step down takes; a step up doubles, so one failure outweighs two successes."""

_PATIENCE_MIN = 4
"""Cycles without a failure before the first step down ..."""

_PATIENCE_MAX = 64
"""... which doubles with each failure up to this, so that tries become rare but do not end."""

_STORM_RECOVERY = 0.1
"""What a calm tick gives back: a storm is forgotten after ten of them."""

_STORM_FACTOR_MIN = 1 / 64
"""Never 0: what is finished may leave even then, and only page outs show that the storm is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When a page out did not pay."""

    min_wait_s_floor: float = 1.0
    """Below this nothing is learned: moving pages takes a good part of it."""
    min_wait_s_cap: float = 600.0
    ping_pong_share: float = 0.5
    """Of the pages that left, those back within the warm threshold: more were a mistake."""
    processor_price: float = 1e9
    """Byte-seconds per processor second (`prices.Prices.processor`)."""
    saved_share: float = 0.75
    """Of a page's bytes, what its page out saves; three quarters at ratio 4."""


@dataclass(frozen=True, slots=True)
class BreakerState:
    """What one sandbox has taught."""

    min_wait_s: float = 1.0
    """Shorter waits are not worth a page out."""
    calm: int = 0
    """Cycles without a failure since the last step."""
    patience: int = _PATIENCE_MIN
    """Calm cycles that a step down needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One wait, from the first page out in it (if any) to the wake."""

    waited_s: float
    pages_out: int
    pages_back_soon: int
    """Back within the warm threshold of the page out."""
    cpu_s: float
    """Processor time of page out and page in."""


@dataclass(frozen=True, slots=True)
class StormRates:
    """Refaults per second and core of the host."""

    high: float = 8000.0
    """An eighth of each core goes into faults: the host pages more than it works."""
    low: float = 2000.0


@dataclass(frozen=True, slots=True)
class Storm:
    """How much of its pages per tick the planner may use, 0 to 1."""

    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Wake:
    """A sandbox that waits for its working set."""

    sandbox: str
    pages: int
    since: float


def paid(cycle: Cycle, thresholds: Thresholds) -> bool:
    """Whether the pages of a wait stayed out, and long enough for the processor time they took."""
    if not cycle.pages_out:
        return True
    if cycle.pages_back_soon > thresholds.ping_pong_share * cycle.pages_out:
        return False
    stayed = cycle.pages_out - cycle.pages_back_soon
    gain = stayed * PAGE_BYTES * thresholds.saved_share * cycle.waited_s
    return gain >= cycle.cpu_s * thresholds.processor_price


def after_cycle(state: BreakerState, cycle: Cycle, thresholds: Thresholds) -> BreakerState:
    """
    Learn from one wait.

    A wait without a page out counts as calm: it is how a threshold that has shut everything out
    comes to try again, ever more rarely if the tries fail.
    """
    floor, cap = thresholds.min_wait_s_floor, thresholds.min_wait_s_cap
    if not paid(cycle, thresholds):
        raised = min(max(2 * state.min_wait_s, floor), cap)
        return BreakerState(raised, 0, min(2 * state.patience, _PATIENCE_MAX))
    if state.calm + 1 < state.patience:
        return replace(state, calm=state.calm + 1)
    # Only a page out that paid earns more trust; silence earns nothing but another try.
    patience = max(state.patience // 2, _PATIENCE_MIN) if cycle.pages_out else state.patience
    return BreakerState(min(max(_LOWER * state.min_wait_s, floor), cap), 0, patience)


def after_tick(storm: Storm, refaults_per_s: float, cores: int, rates: StormRates) -> Storm:
    """Follow the refaults of the whole host; between the two rates nothing changes."""
    per_core = refaults_per_s / cores
    if per_core > rates.high:
        return Storm(max(storm.factor / 2, _STORM_FACTOR_MIN))
    if per_core < rates.low:
        return Storm(min(storm.factor + _STORM_RECOVERY, 1.0))
    return storm


def admit(wakes: Iterable[Wake], available_bytes: int, floor_bytes: int) -> list[Wake]:
    """
    Wakes whose pages fit now, in the order in which they came.

    Nobody is overtaken: the first that does not fit gets the pages that do, and ends the list; it
    asks for the others again with its old `since`.  So each makes headway as memory comes free,
    and a large one is not kept waiting by small ones behind it.  What must not wait is not asked
    here: a page that is touched comes home at once.

    Args:
        wakes: In any order.
        available_bytes: Memory of the host that can be had.
        floor_bytes: Of it, what prefetch must leave.
    """
    room = max(available_bytes - floor_bytes, 0) // PAGE_BYTES
    admitted = []
    for wake in sorted(wakes, key=lambda wake: (wake.since, wake.sandbox)):
        pages = min(wake.pages, room)
        if pages > 0 or not wake.pages:
            admitted.append(replace(wake, pages=pages))
        room -= pages
        if pages < wake.pages:
            break
    return admitted

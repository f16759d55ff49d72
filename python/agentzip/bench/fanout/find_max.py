"""
How many sandboxes fit under a memory limit, mode by mode.

The limit is on what the host uses (MemAvailable), not on a control group: what zram or a daemon
holds for the sandboxes is charged to other groups or to none, so a group's limit would count what
leaves them as gained.  A run that goes beyond the limit is ended at once; nothing is ever pushed to
the OOM killer.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.bench.fanout.readings import ModeRun
from agentzip.bench.fanout.result import spread
from agentzip.bench.fanout.run import Ground, ground, run_mode
from agentzip.errors import AgentZipError, InvalidSetting

__all__ = ["MaxOfMode", "MaxResult", "find_max", "search_max"]

_SANDBOXES_MAX = 1000
_TRIES_MAX = 8
_NEAR = 0.05
"""The search ends when what fits and what does not are so close, as part of what fits."""


@dataclass(slots=True)
class MaxOfMode:
    """The largest run of one mode that stayed within the limit."""

    mode: str
    sandboxes: int = 0
    peak_bytes: int = 0
    cost_bytes: int = 0
    """Mean of the same run by accounting, which other programs on the host do not move."""
    turn_s: dict[str, float | None] = field(default_factory=dict)
    wake_ms: dict[str, float | None] = field(default_factory=dict)
    checks_wrong: int = 0
    """Results that agents found wrong themselves, in that run."""
    tried: list[tuple[int, bool]] = field(default_factory=list)
    """How many, and whether they fitted."""


@dataclass(slots=True)
class MaxResult:
    """What fits in every mode."""

    memory_limit_bytes: int
    plan: dict[str, object]
    modes: list[MaxOfMode] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def find_max(
    plan: FanoutPlan, modes: list[str], tell: Callable[[str], None] = lambda _: None
) -> MaxResult:
    """
    Search each mode, beginning with the plan's number of sandboxes.

    Raises:
        InvalidSetting: the plan has no memory limit.
        AgentZipError: the bench itself cannot work here.
    """
    if not plan.memory_limit_bytes:
        raise InvalidSetting(
            "--find-max needs a limit to stay under", "give --memory-limit, like 8GB"
        )
    result = MaxResult(plan.memory_limit_bytes, asdict(plan))
    with ground(plan) as place:
        for name in modes:
            try:
                result.modes.append(_of_mode(name, plan, place, tell))
            except AgentZipError as error:
                result.skipped[name] = str(error)
    return result


def search_max(first: int, fits: Callable[[int], float]) -> int:
    """
    The largest count that fits.

    Args:
        first: Where to begin.
        fits: The part of the limit that a count used; above 1.0 it did not fit.

    Returns:
        0 if not even one fits.
    """
    fitting, failing, count = 0, _SANDBOXES_MAX + 1, first
    for _ in range(_TRIES_MAX):
        share = fits(count)
        if share <= 1.0:
            fitting = count
            # What each one takes tells where the limit is, if nothing else grows.
            guess = int(count / max(share, 0.01))
        else:
            failing = count
            guess = (fitting + failing) // 2
        if failing - fitting <= max(1, int(fitting * _NEAR)):
            break
        if not fitting < guess < failing:
            guess = fitting + 1 if guess <= fitting else (fitting + failing) // 2
        count = guess
    return fitting


def _of_mode(name: str, plan: FanoutPlan, place: Ground, tell: Callable[[str], None]) -> MaxOfMode:
    found = MaxOfMode(name)

    def fits(count: int) -> float:
        tell(f"{name}: {count} sandboxes")
        run = run_mode(name, replace(plan, sandboxes=count), place, tell)
        share = 2.0 if run.stopped else run.memory.peak_bytes / plan.memory_limit_bytes
        found.tried.append((count, share <= 1.0))
        if share <= 1.0 and count > found.sandboxes:
            _note(found, count, run)
        return share

    search_max(plan.sandboxes, fits)
    return found


def _note(found: MaxOfMode, count: int, run: ModeRun) -> None:
    found.sandboxes, found.peak_bytes = count, run.memory.peak_bytes
    found.cost_bytes = run.memory.cost_bytes
    found.turn_s = spread([seconds for one in run.played for seconds in one.turns_s])
    found.wake_ms = spread([seconds * 1000 for one in run.played for seconds in one.wakes_s])
    found.checks_wrong = sum(one.checks_wrong for one in run.played)

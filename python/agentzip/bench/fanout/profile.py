"""
What one sandbox takes in one mode, asleep and awake: what `agentzip simulate` starts from.  Pure.

A sandbox is looked at before each wake and after each turn.  The first turn stands alone: nothing
has been learned before it, so its pages come home by faults.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean

__all__ = ["PROFILED", "Look", "Pages", "TurnTimes", "mean_pages", "profile_of"]

PROFILED = 8
"""Sandboxes that are looked at closely: enough for a profile, and few enough that looking (ten
milliseconds each) does not load the host with what it measures."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of a sandbox, as an engine counts them; 0 where there is none."""

    out: int = 0
    kept: int = 0
    """At home, with a copy in the pool that is still good."""
    learned: int = 0
    prefetched: int = 0
    """Ever, as the next."""
    refaults: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """One sandbox at one moment."""

    rss: int
    pss: int
    private: int
    """Memory that nobody else maps and that has no file behind it."""
    processes: int
    cpu_s: float
    """Processor seconds of its living processes, ever."""
    pages: Pages


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """What one turn took, in seconds one after the other."""

    turn: int
    home_s: float
    """Until the mode let the sandbox go on."""
    recall_s: float
    """Until it had read the state that every turn needs."""
    tool_s: float
    """Until its answer."""


def profile_of(
    times: Iterable[TurnTimes], asleep: Sequence[Sequence[Look]], awake: Sequence[Sequence[Look]]
) -> dict[str, object]:
    """
    The profile of one mode.

    Args:
        times: Of all turns of all sandboxes.
        asleep: Of each sandbox that was looked at, before its wakes.
        awake: The same after its turns.

    Returns:
        Means over sandboxes and turns; without looks only the times.
    """
    pairs = [
        (number, before, after)
        for befores, afters in zip(asleep, awake, strict=True)
        for number, (before, after) in enumerate(zip(befores, afters, strict=False))
    ]
    found: dict[str, object] = {"turns": [asdict(one) for one in times]}
    if not pairs:
        return found
    settled = [pair for pair in pairs if pair[0]] or pairs
    for name, looks in (
        ("asleep", [before for _, before, _ in settled]),
        ("awake", [after for _, _, after in settled]),
    ):
        found[f"rss_{name}_bytes"] = int(fmean(one.rss for one in looks))
        found[f"pss_{name}_bytes"] = int(fmean(one.pss for one in looks))
        found[f"private_{name}_bytes"] = int(fmean(one.private for one in looks))
    taken = [after.cpu_s - before.cpu_s for _, before, after in pairs]
    # A process that ended in between took its seconds along.
    found["processes"] = fmean(before.processes for _, before, _ in settled)
    found["turn_cpu_s"] = fmean(max(seconds, 0.0) for seconds in taken)
    firsts = [pair for pair in pairs if not pair[0]]
    for name, chosen in (("first", firsts), ("later", settled)):
        found[name] = {
            "asleep": mean_pages([before.pages for _, before, _ in chosen]),
            "awake": mean_pages([after.pages for _, _, after in chosen]),
        }
    return found


def mean_pages(found: Sequence[Pages]) -> dict[str, float]:
    """Field by field."""
    return {field.name: fmean(getattr(one, field.name) for one in found) for field in fields(Pages)}

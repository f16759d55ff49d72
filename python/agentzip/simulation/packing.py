"""
Sandboxes onto hosts by net memory, and how many hosts a fleet needs.

*Net* is what a sandbox takes on average: what stays resident, its part of the pool, our tables,
and what is home while it works.  An average leaves no room for wakes that come together, so a
packing is a proposal: its hosts are simulated, and if one is too full the next looser one is tried.
The proposals do not depend on what is asked of latency; whoever allows more accepts every packing
that was accepted before, and so never needs more hosts.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from agentzip.errors import InvalidSetting
from agentzip.policy.phases import counted_on_s
from agentzip.policy.planner import Costs, keep_pages
from agentzip.policy.prices import PAGE_BYTES
from agentzip.simulation.figures import FleetFigures, HostFigures, host_figures
from agentzip.simulation.memory import FLOOR_BYTES
from agentzip.simulation.model import HostRun, HostShape, Play, simulate_host
from agentzip.simulation.profiles import Profile
from agentzip.units import format_bytes

__all__ = ["Bounds", "Packing", "fit", "net_bytes", "proposals"]

_LOOSER = 0.93
"""Each proposal fills this much less than the one before: a tenth more hosts is a step or two."""

_SHARES = 48
"""Proposals: the last fills a thirtieth of a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a host must keep; 0 where nothing is asked."""

    turn_p99_s: float = 0.0
    wake_p99_s: float = 0.0

    def broken_by(self, found: HostFigures) -> str:
        """Which of them a host breaks; empty if it keeps all."""
        if found.stuck:
            return found.stuck
        turn_s, wake_s = found.turn_s["p99"], found.wake_ms["p99"] / 1000
        if self.turn_p99_s and turn_s > self.turn_p99_s:
            return f"turn P99 {turn_s:.2f} s, {self.turn_p99_s:.2f} s allowed"
        if self.wake_p99_s and wake_s > self.wake_p99_s:
            return f"wake P99 {wake_s * 1000:.0f} ms, {self.wake_p99_s * 1000:.0f} ms allowed"
        return ""


@dataclass(frozen=True, slots=True)
class Packing:
    """A proposal: what is on each host."""

    fill: float
    hosts: tuple[tuple[int, ...], ...]
    """Numbers of the profiles, host by host."""


def net_bytes(profile: Profile, play: Play) -> float:
    """Memory that a sandbox takes on average, without what all share."""
    if profile.mode == "none":
        return profile.whole_pages * PAGE_BYTES
    target_s = profile.latency_target_s if play.latency_target_s is None else play.latency_target_s
    keep = 0
    if profile.mode == "full":
        wake_s = target_s + counted_on_s(play.notice_s)
        keep = keep_pages(profile.learned_pages, wake_s, Costs().restore_batched_s)
    out = profile.movable_pages - keep
    books = out * profile.pool_page_bytes + profile.table_bytes
    later = profile.later
    turn_s = profile.home_fixed_s + later.recall_s.mean + later.tool_s.mean
    home = min(profile.learned_pages - keep + later.faulted_pages, out)
    awake = (turn_s + min(play.notice_s, play.think_s)) / (turn_s + play.think_s)
    return (profile.stay_pages + keep + awake * home) * PAGE_BYTES + books


def proposals(
    kinds: Sequence[Profile], sandboxes: int, shape: HostShape, play: Play
) -> list[Packing]:
    """
    Packings of a fleet, the fewest hosts first.

    Args:
        kinds: What the sandboxes are, in turn.
        sandboxes: How many.
        shape: What the hosts are.
        play: What they do.

    Raises:
        InvalidSetting: not even one sandbox fits.
    """
    nets = [net_bytes(kind, play) for kind in kinds]
    numbers = sorted(
        (number % len(kinds) for number in range(sandboxes)), key=lambda kind: (-nets[kind], kind)
    )
    once = _once_bytes(kinds)
    room = shape.memory_bytes - shape.other_bytes - once
    for kind in kinds:
        # A sandbox is whole when it starts.
        needed = kind.whole_pages * PAGE_BYTES + kind.table_bytes + FLOOR_BYTES
        if needed > room:
            needed += once + shape.other_bytes
            raise InvalidSetting(
                f"host-memory is too small for one sandbox of workload {kind.workload}: "
                f"{format_bytes(shape.memory_bytes)}",
                f"give at least {format_bytes(needed)}",
            )
    found: dict[tuple[tuple[int, ...], ...], Packing] = {}
    for step in range(_SHARES):
        fill = _LOOSER**step
        if fill * room < max(nets):
            break
        hosts = _pack(numbers, nets, fill * room)
        found.setdefault(hosts, Packing(fill, hosts))
    alone = tuple((number,) for number in numbers)
    found.setdefault(alone, Packing(0.0, alone))
    return sorted(found.values(), key=lambda packing: len(packing.hosts))


def fit(
    kinds: Sequence[Profile],
    sandboxes: int,
    shape: HostShape,
    play: Play,
    bounds: Bounds,
    tell: Callable[[str], None] = lambda _: None,
) -> FleetFigures:
    """
    How many hosts a fleet needs in one mode.

    Args:
        kinds: What the sandboxes are, in turn; all of one mode.
        sandboxes: How many.
        shape: What the hosts are.
        play: What they do.
        bounds: What a host must keep.
        tell: Hears what is being done.

    Raises:
        InvalidSetting: not even one sandbox fits on a host.
    """
    mode = kinds[0].mode
    why = ""
    figures: HostFigures | None = None
    for packing in proposals(kinds, sandboxes, shape, play):
        tell(f"{mode}: {sandboxes} sandboxes on {len(packing.hosts)} hosts")
        figures = _simulate(kinds, packing, shape, play)
        broken = bounds.broken_by(figures)
        if not broken:
            return _fleet(kinds, packing, play, why, figures)
        why = f"with {max(map(len, packing.hosts))} on a host: {broken}"
    return FleetFigures(
        mode=mode,
        sandboxes=sandboxes,
        hosts=None,
        sandboxes_per_host=0,
        net_bytes=_mean_net(kinds, play),
        fill=0.0,
        why=why,
        simulated=figures,
    )


def _fleet(
    kinds: Sequence[Profile], packing: Packing, play: Play, why: str, figures: HostFigures
) -> FleetFigures:
    return FleetFigures(
        mode=kinds[0].mode,
        sandboxes=sum(map(len, packing.hosts)),
        hosts=len(packing.hosts),
        sandboxes_per_host=max(map(len, packing.hosts)),
        net_bytes=_mean_net(kinds, play),
        fill=packing.fill,
        why=why,
        simulated=figures,
    )


def _mean_net(kinds: Sequence[Profile], play: Play) -> int:
    return int(fmean(net_bytes(kind, play) for kind in kinds))


def _once_bytes(kinds: Sequence[Profile]) -> int:
    """What a host holds once, however many sandboxes are on it."""
    shared = {kind.workload: kind.shared_bytes for kind in kinds}
    overhead = max(kind.overhead_bytes for kind in kinds) if kinds[0].mode != "none" else 0
    return sum(shared.values()) + overhead


def _pack(
    numbers: Sequence[int], nets: Sequence[float], capacity: float
) -> tuple[tuple[int, ...], ...]:
    """First fit, the largest first."""
    hosts: list[list[int]] = []
    free: list[float] = []
    first = 0
    for position, number in enumerate(numbers):
        if position and nets[number] < nets[numbers[position - 1]]:
            # Hosts that were too full for the larger ones may take these.
            first = 0
        while first < len(hosts) and free[first] < nets[number]:
            first += 1
        if first == len(hosts):
            hosts.append([])
            free.append(capacity)
        hosts[first].append(number)
        free[first] -= nets[number]
    return tuple(tuple(host) for host in hosts)


def _simulate(
    kinds: Sequence[Profile], packing: Packing, shape: HostShape, play: Play
) -> HostFigures:
    """Simulate one host of each kind of content: the others are like them."""
    # Whatever is asked of latency: a host on which wakes wait for memory is too full.
    strict = replace(play, ends_when_short=True)
    runs: list[HostRun] = []
    for content in sorted(Counter(packing.hosts), key=len, reverse=True):
        mixed = _interleaved(content)
        run = simulate_host(shape, strict, [kinds[number] for number in mixed])
        runs.append(run)
        if run.stuck:
            break
    return host_figures(runs, shape)


def _interleaved(content: Sequence[int]) -> list[int]:
    """Sandboxes of different kinds come in turn, not one kind after the other."""
    seen: Counter[int] = Counter()
    ranked = []
    for number in content:
        ranked.append((seen[number], number))
        seen[number] += 1
    return [number for _, number in sorted(ranked)]

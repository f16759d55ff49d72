"""
What was found, and the arithmetic on it: pure.

`ratio`, `ratio_pss` and `host_gain_bytes` are those of `agentzip.accounting`.  A sample looks at
the sandboxes that wait at that moment; what they would take (mode `none`, same round) is divided
by what they take, with the whole pool, all tables, the daemon and the keeper on the bill, even if
part of the pool belongs to sandboxes that run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from agentzip.accounting import Gain, gain, percentile
from agentzip.bench.fanout.profile import TurnTimes, profile_of
from agentzip.bench.fanout.readings import Habits, MemoryRun, ModeRun, Played, mean_of
from agentzip.policy.prefetch import estimate

__all__ = [
    "MEANINGS",
    "FanoutResult",
    "ModeResult",
    "count_wrong",
    "figures",
    "gain_of",
    "habits_after",
    "median_of",
    "spread",
]

MEANINGS = {
    "ratio": "RSS of waiting sandboxes in mode none / PSS of waiting sandboxes + whole pool + "
    "tables + daemon and keeper (zram, zswap: + pages in the swap cache that nobody has mapped), "
    "over all samples until the first sandbox has finished",
    "ratio_pss": "the same with PSS of mode none on top",
    "host_gain_bytes": "mean of the host's used memory in mode none, less that in this mode",
    "pss_gain_bytes": "the same by accounting: PSS of all sandboxes in mode none, less PSS + pool "
    "+ tables + daemon and keeper (+ swap cache, as above) in this mode",
    "peak_bytes": "most memory of the host that was used at once, the start of the sandboxes "
    "included, above what was used before them (MemAvailable)",
    "mean_bytes": "mean of the same while turns are taken",
    "waiting": "of one waiting sandbox, mean: RSS and PSS in mode none; after_bytes is its part of "
    "all that is taken, the divisor of both ratios",
    "made_of": "mean while turns are taken, all sandboxes: their PSS in private memory, files and "
    "shared memory, then pool, tables, daemon and keeper (overhead, and the files in it), pages in "
    "the swap cache that nobody has mapped; of the host, above what was there before: kernel (page "
    "tables, slabs, stacks) and programs (all of them, what is in no file of a disk)",
    "task_s": "from a sandbox's first turn to the end of its last, think times included; mean",
    "turn_s": "from the moment the model's answer is there to the agent's result",
    "wake_ms": "from the same moment until the agent has read the state that every turn needs",
    "wake_known_ms": "wake_ms from the third wake of each sandbox on: its habit is known then",
    "faults": "page faults answered by the mode, first touches left out; none and the kernel's "
    "ways: major faults",
    "prefetch": "hit_rate: of the pages needed after a wake, those that were home before; waste: "
    "of the pages brought home, those that were not needed; from a sample that is held back",
    "cpu_percent": "daemon, keeper, kswapd and ksmd (zram, zswap: and the advice), of the machine",
    "cpu_percent_of": "the same apart; kernel: kswapd and ksmd",
    "by_workload": "turn_s and wake_ms of the sandboxes of each workload",
    "profile": "of the first sandboxes, from looks before each wake (asleep) and after each turn "
    "(awake): memory, the engine's pages of the first turn and of later ones, and what each turn "
    "took; `agentzip simulate --from` starts from it",
    "finished": "sandboxes that took all their turns and told their last digest; commands that "
    "ended with exit code 0, or still ran when their time was over",
    "results_wrong": "turns and last digests that differ from those of mode none, and results "
    "that an agent itself found wrong; null for a command, whose results nobody knows",
}
"""What each figure of the JSON object is."""

_KNOWN_FROM = 2
"""The wake, from 0, by which a sandbox's habit is known: it was learned in the first two."""


@dataclass(slots=True, kw_only=True)
class ModeResult:
    """The figures of one mode."""

    mode: str
    ratio: float = 1.0
    ratio_pss: float = 1.0
    host_gain_bytes: int = 0
    pss_gain_bytes: int = 0
    peak_bytes: int = 0
    mean_bytes: int = 0
    cost_bytes: int = 0
    pool_bytes: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    """Of one waiting sandbox: rss_before_bytes, pss_before_bytes, after_bytes."""
    made_of: dict[str, int] = field(default_factory=dict)
    task_s: float = 0.0
    turn_s: dict[str, float | None] = field(default_factory=dict)
    wake_ms: dict[str, float | None] = field(default_factory=dict)
    wake_known_ms: dict[str, float | None] = field(default_factory=dict)
    by_workload: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    faults: int = 0
    prefetch: dict[str, float | None] = field(default_factory=dict)
    prefetch_from_third: dict[str, float | None] = field(default_factory=dict)
    prefetch_first: dict[str, float | None] = field(default_factory=dict)
    cpu_percent: float = 0.0
    cpu_percent_of: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    wall_s: float = 0.0
    oom_kills: int = 0
    finished: int = 0
    results_wrong: int | None = 0
    """None if nobody knows what is right."""
    stopped: str = ""
    """Why the run was ended early; empty if it was not."""
    notes: dict[str, object] = field(default_factory=dict)
    memory: list[dict[str, float]] = field(default_factory=list)
    """Over time: at_s, used_bytes, cost_bytes, waiting."""
    turns_s: list[float] = field(default_factory=list)
    """Every turn of every sandbox, in no order that means anything."""
    wakes_ms: list[float] = field(default_factory=list)
    profile: dict[str, object] = field(default_factory=dict)
    """What one sandbox takes (profile.py), and the mode's books beside the pool."""


@dataclass(slots=True)
class FanoutResult:
    """A whole run."""

    plan: dict[str, object]
    host: dict[str, object] = field(default_factory=dict)
    modes: list[ModeResult] = field(default_factory=list)
    """Medians over the rounds."""
    rounds: list[list[ModeResult]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Mode -> why it was not run."""
    seconds: float = 0.0

    @property
    def results_wrong(self) -> int:
        """Over all modes and rounds."""
        return sum(one.results_wrong or 0 for found in self.rounds for one in found)

    @property
    def complete(self) -> bool:
        """Every sandbox of every mode finished with the right results."""
        sandboxes = self.plan["sandboxes"]
        finished = all(one.finished == sandboxes for found in self.rounds for one in found)
        return finished and not self.results_wrong and not self.skipped

    @property
    def right(self) -> bool:
        """Nothing that ran to its end was wrong, and nobody fell behind."""
        whole = [one for found in self.rounds for one in found if not one.stopped]
        sandboxes = self.plan["sandboxes"]
        return not self.results_wrong and all(one.finished == sandboxes for one in whole)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles; None for no values."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p95", "p99"))
    named = {f"p{edge}": percentile(values, edge) for edge in (50, 95, 99)}
    return {"mean": fmean(values), **named}


def figures(run: ModeRun, none: ModeRun) -> ModeResult:
    """
    The figures of one mode.

    Args:
        run: Its readings.
        none: Those of mode none in the same round.
    """
    tasks = [one.ended_s - one.began_s for one in run.played if one.finished]
    elapsed_s = max(run.wall_s * run.processors, 1e-9)
    known = any(one.said for one in none.played)
    result = ModeResult(
        mode=run.mode,
        pss_gain_bytes=none.memory.cost_bytes - run.memory.cost_bytes,
        peak_bytes=run.memory.peak_bytes,
        mean_bytes=run.memory.mean_bytes,
        cost_bytes=run.memory.cost_bytes,
        pool_bytes=mean_of(one.footprint.pool for one in run.memory.steady()),
        made_of=run.memory.made_of(),
        task_s=fmean(tasks) if tasks else 0.0,
        turn_s=spread(_turns_s(run.played)),
        wake_ms=spread(_wakes_ms(run.played)),
        wake_known_ms=spread(_wakes_ms(run.played, _KNOWN_FROM)),
        by_workload=_by_workload(run.played),
        faults=run.faults,
        prefetch=_rates(habits_after(run.played, 0)),
        prefetch_first=_rates(habits_after(run.played, 0, 1)),
        prefetch_from_third=_rates(habits_after(run.played, _KNOWN_FROM)),
        cpu_percent=100 * run.cpu.total / elapsed_s,
        cpu_percent_of={name: 100 * spent / elapsed_s for name, spent in asdict(run.cpu).items()},
        cpu_s=run.cpu.total,
        wall_s=run.wall_s,
        oom_kills=run.oom_kills,
        finished=sum(one.finished for one in run.played),
        results_wrong=count_wrong(run.played, none.played) if known else None,
        stopped=run.stopped,
        notes=dict(run.notes),
        memory=[
            {
                "at_s": one.at_s,
                "used_bytes": one.used_bytes,
                "cost_bytes": sum(one.pss.values()) + one.footprint.total,
                "waiting": len(one.waiting),
            }
            for one in run.memory.samples
        ],
        turns_s=_turns_s(run.played),
        wakes_ms=_wakes_ms(run.played),
        profile=_profile(run),
    )
    if gained := gain_of(run.memory, none.memory):
        many = fmean(len(one.waiting) for one in run.memory.steady() if one.waiting)
        result.waiting = {
            "rss_before_bytes": int(gained.baseline_rss_bytes / many),
            "pss_before_bytes": int(gained.baseline_pss_bytes / many),
            "after_bytes": int(gained.cost_bytes / many),
        }
        result.ratio, result.ratio_pss = gained.ratio, gained.ratio_pss
        result.host_gain_bytes = gained.host_gain_bytes
    return result


def _profile(run: ModeRun) -> dict[str, object]:
    times = [
        TurnTimes(number, home, wake - home, turn - wake)
        for one in run.played
        for number, (home, wake, turn) in enumerate(
            zip(one.homes_s, one.wakes_s, one.turns_s, strict=False)
        )
    ]
    looked = [one for one in run.played if one.asleep]
    footprints = [one.footprint for one in run.memory.steady()]
    return {
        "start_s": run.start_s,
        "busy_share": run.busy_share,
        "page_outs_s": run.page_outs_s,
        "tables_bytes": mean_of(one.tables for one in footprints),
        "overhead_bytes": mean_of(one.overhead for one in footprints),
        **profile_of(times, [one.asleep for one in looked], [one.awake for one in looked]),
    }


def _turns_s(played: Sequence[Played]) -> list[float]:
    return [seconds for one in played for seconds in one.turns_s]


def _wakes_ms(played: Sequence[Played], first: int = 0) -> list[float]:
    return [seconds * 1000 for one in played for seconds in one.wakes_s[first:]]


def _by_workload(played: Sequence[Played]) -> dict[str, dict[str, dict[str, float | None]]]:
    found: dict[str, list[Played]] = {}
    for one in played:
        found.setdefault(one.workload, []).append(one)
    return {
        name: {"turn_s": spread(_turns_s(some)), "wake_ms": spread(_wakes_ms(some))}
        for name, some in found.items()
    }


def _rates(habits: Habits | None) -> dict[str, float | None]:
    if habits is None:
        return {"hit_rate": None, "waste": None}
    found = estimate(habits.spared, habits.spared_touched, habits.prefetched, habits.missed)
    return {"hit_rate": found.hit_rate, "waste": found.waste}


def gain_of(run: MemoryRun, none: MemoryRun) -> Gain | None:
    """The gain of a mode, against mode none of the same round; None without a common sample."""
    rss, pss = none.baseline()
    samples = [(sample, sample.waiting & rss.keys()) for sample in run.steady() if sample.waiting]
    if not any(waiting for _, waiting in samples):
        return None
    return gain(
        baseline_rss=[mean_of(sum(rss[one] for one in waiting) for _, waiting in samples)],
        baseline_pss=[mean_of(sum(pss[one] for one in waiting) for _, waiting in samples)],
        after_pss=[mean_of(sum(found.pss[one] for one in waiting) for found, waiting in samples)],
        pool_bytes=mean_of(found.footprint.pool for found, _ in samples),
        table_bytes=mean_of(found.footprint.tables for found, _ in samples),
        overhead_bytes=mean_of(
            found.footprint.overhead + found.footprint.unmapped for found, _ in samples
        ),
        # Used memory counts downwards: what is used less is gained.
        available_before=-none.mean_bytes,
        available_after=-run.mean_bytes,
    )


def count_wrong(found: Sequence[Played], none: Sequence[Played]) -> int:
    """Turns and digests that are not those of mode none, and results found wrong by agents."""
    wrong = 0
    for one, right in zip(found, none, strict=False):
        wrong += one.checks_wrong
        wrong += sum(said != other for said, other in zip(one.said, right.said, strict=False))
        # Whoever did not finish is missing in `finished`, which is bad enough.
        wrong += bool(one.digest and right.digest and one.digest != right.digest)
    return wrong


def habits_after(found: Sequence[Played], first: int, last: int | None = None) -> Habits | None:
    """Counters of all sandboxes between two wakes, from 0; None without a prefetch."""
    total: Habits | None = None
    for one in found:
        readings = [Habits(), *one.habits[:last]][first:]
        for before, now in pairwise(readings):
            total = (total or Habits()) + now.since(before)
    return total


def median_of(results: Sequence[ModeResult]) -> ModeResult:
    """Each figure's median over rounds of one mode; what counts harm is added up."""
    combined = _combined([asdict(result) for result in results])
    wrong = [result.results_wrong for result in results if result.results_wrong is not None]
    combined["results_wrong"] = sum(wrong) if wrong else None
    combined["oom_kills"] = sum(result.oom_kills for result in results)
    combined["finished"] = min(result.finished for result in results)
    combined["memory"] = results[-1].memory
    for name in ("turns_s", "wakes_ms"):
        combined[name] = [one for result in results for one in getattr(result, name)]
    return ModeResult(**combined)


def _combined(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians of numbers, key by key; of anything else the last."""
    found: dict[str, Any] = {}
    for key, last in values[-1].items():
        column = [value.get(key) for value in values]
        numbers = [one for one in column if isinstance(one, int | float)]
        if isinstance(last, dict):
            found[key] = _combined([one for one in column if isinstance(one, dict)])
        elif numbers and isinstance(last, int | float) and not isinstance(last, bool):
            middle = median(numbers)
            found[key] = int(middle) if isinstance(last, int) else middle
        else:
            found[key] = last
    return found

"""
Who takes a turn when: every way once per round, in an order that rotates.
"""

import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agentzip.bench import zram
from agentzip.bench.figures import Ledger, Verdict, judge
from agentzip.bench.ways import CHUNK_PAGES, EngineWay, FloorWay, Way

__all__ = ["MEBIBYTES_MIN", "BenchPlan", "BenchResult", "run_bench"]

MEBIBYTES_MIN = 24
"""Pages for three times as many touches as a plan has, none of them twice."""

_ALGORITHMS: tuple[tuple[str, int | None], ...] = (("raw", None), ("lz4", None), ("zstd", 3))


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How much is measured."""

    mebibytes: int = 80
    """Heap of each target."""
    rounds: int = 7
    touches: int = 2000
    """Random pages touched per way and round."""
    attaches: int = 6
    """Per way and round: detach and attach again."""
    stops: int = 20
    """Per way and round: page outs of one page, so that a P99 of the stop means something."""

    @classmethod
    def quick(cls, mebibytes: int) -> "BenchPlan":
        """A look in some seconds; P99 values of this are hardly more than the worst."""
        return cls(mebibytes, rounds=3, touches=1000, attaches=4, stops=8)


@dataclass(slots=True)
class BenchResult:
    """All that a run found."""

    plan: BenchPlan
    ledger: Ledger = field(default_factory=Ledger)
    host: dict[str, object] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Way -> why it took no part."""
    stored_ratio: dict[str, float] = field(default_factory=dict)
    """Way -> how much smaller the pages got."""
    busy: int = 0
    """How often no thread could be stopped within the limit; such a try is repeated."""
    pages_wrong: int = 0

    @property
    def verdicts(self) -> list[Verdict]:
        """The aims beside the figures."""
        return judge(self.ledger)


def run_bench(plan: BenchPlan, tell: Callable[[str], None] = lambda _: None) -> BenchResult:
    """
    Measure everything; `tell` hears what is being done.

    Raises:
        AgentZipError: the host cannot run the pager, or a process of the benchmark failed.
    """
    result = BenchResult(plan)
    folder = Path(tempfile.mkdtemp(prefix="agentzip-bench-"))
    try:
        result.host = _host()
        with ExitStack() as stack:
            _run(plan, folder, stack, result, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _run(
    plan: BenchPlan,
    folder: Path,
    stack: ExitStack,
    result: BenchResult,
    tell: Callable[[str], None],
) -> None:
    tell("starting targets and engines")
    ways: list[Way] = [stack.enter_context(FloorWay(plan.mebibytes, folder))]
    engines = [
        stack.enter_context(EngineWay(algorithm, level, plan.mebibytes, folder))
        for algorithm, level in _ALGORITHMS
    ]
    ways += engines
    if reason := zram.why_not():
        result.skipped[zram.ZramWay.name] = reason
    else:
        # More than the heap: the kernel may choose to page out others a little, too.
        stack.enter_context(zram.compressed_device(4 * plan.mebibytes * 2**20))
        ways.append(stack.enter_context(zram.ZramWay(plan.mebibytes, folder)))
    for number in range(plan.rounds):
        first = number % len(ways)
        for way in ways[first:] + ways[:first]:
            tell(f"round {number + 1} of {plan.rounds}: {way.name}")
            result.pages_wrong += way.turn(number + 1, plan.touches, result.ledger)
            if isinstance(way, EngineWay):
                way.stop_often(plan.stops, result.ledger)
                way.attach_and_detach(plan.attaches, result.ledger)
    for way in engines:
        result.stored_ratio[way.name] = way.ratio
        result.busy += way.busy
    result.host["load_after"] = os.getloadavg()[0]


def _host() -> dict[str, object]:
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "chunk_pages": CHUNK_PAGES,
    }

"""
What every way needs before and after: the sandboxes' memory and what they must still say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentzip.accounting import gain
from agentzip.bench.encode.result import EncodingResult, Spread
from agentzip.host import memory
from agentzip.workloads.crew import Sandbox, for_all

__all__ = ["Baseline", "note_gain", "settled_digests", "step_all", "undo_and_compare"]

_SETTLE_TRIES = 5


@dataclass(frozen=True, slots=True)
class Baseline:
    """The sandboxes before anything is taken."""

    rss: list[int]
    pss: list[int]
    available: int
    digests: list[str]

    @classmethod
    def take(cls, sandboxes: Sequence[Sandbox], digests: list[str]) -> "Baseline":
        """Read it now."""
        use = [memory.sum_use(sandbox.pids()) for sandbox in sandboxes]
        rss, pss = [one.rss for one in use], [one.pss for one in use]
        return cls(rss, pss, memory.memory_available(), digests)


def settled_digests(sandboxes: Sequence[Sandbox]) -> list[str]:
    """
    What every sandbox says of itself, once two answers in a row are the same.

    Both are wanted: the first digest and the first step also fill caches of their own.
    """
    before: list[str] = []
    for _ in range(_SETTLE_TRIES):
        step_all(sandboxes, 1)
        step_all(sandboxes, 1)
        found = for_all(sandboxes, lambda sandbox: sandbox.digest())
        if found == before:
            break
        before = found
    return found


def note_gain(
    into: EncodingResult,
    sandboxes: Sequence[Sandbox],
    baseline: Baseline,
    *,
    pool_bytes: int,
    table_bytes: int,
    overhead_bytes: int,
) -> None:
    """Measure what is left of the sandboxes and note both ratios."""
    gained = gain(
        baseline_rss=baseline.rss,
        baseline_pss=baseline.pss,
        after_pss=[memory.sum_use(sandbox.pids()).pss for sandbox in sandboxes],
        pool_bytes=pool_bytes,
        table_bytes=table_bytes,
        overhead_bytes=overhead_bytes,
        available_before=baseline.available,
        available_after=memory.memory_available(),
    )
    into.ratio, into.ratio_pss = gained.ratio, gained.ratio_pss
    into.baseline_rss_bytes = gained.baseline_rss_bytes
    into.baseline_pss_bytes = gained.baseline_pss_bytes
    into.after_pss_bytes = gained.after_pss_bytes
    into.pool_bytes, into.table_bytes = pool_bytes, table_bytes
    into.overhead_bytes = overhead_bytes
    into.host_gain_bytes = gained.host_gain_bytes


def step_all(sandboxes: Sequence[Sandbox], steps: int) -> Spread | None:
    """Some tool calls of each sandbox, one at a time; their times in milliseconds."""
    samples = []
    for number in range(steps):
        for sandbox in sandboxes:
            _, seconds = sandbox.step(number)
            samples.append(seconds * 1000)
    return Spread.of(samples)


def undo_and_compare(sandboxes: Sequence[Sandbox], steps: int, baseline: Baseline) -> int:
    """Make the same tool calls again, which takes them back; how many sandboxes differ now."""
    step_all(sandboxes, steps)
    found = for_all(sandboxes, lambda sandbox: sandbox.digest())
    return sum(now != before for now, before in zip(found, baseline.digests, strict=True))

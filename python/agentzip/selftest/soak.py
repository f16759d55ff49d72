"""
Soak: one long run with everything that a program does in its life, by count of operations.

`agentzip selftest --suite soak --ops 10000000` is for a night; the tests run a short one.
"""

from pathlib import Path

from agentzip.selftest.exact_stress import run_stress
from agentzip.selftest.registry import CheckSkipped, check, wanted
from agentzip.selftest.stage import Stage

__all__ = ["soak", "soak_of_many_regions"]

_SECONDS_EACH = 0.002
"""What an operation may take on a busy machine; ten times what it takes on a quiet one."""

_SPARE_REGIONS = 3000
"""Left below `vm.max_map_count`: for the regions that the threads make and split, and for us."""

_REGIONS_MIN = 10_000

_MANY_TIMES = 8
"""So many times as many operations: a page out of so many mappings takes seconds."""


def _seconds_max() -> float:
    return 120 + _SECONDS_EACH * wanted("ops")


@check("soak/life", 150, each=("ops", _SECONDS_EACH))
def soak(stage: Stage) -> None:
    """Threads move and change mappings, fork, start programs and threads, signal, wait, use THP."""
    options = ("--forks", "on", "--moves", "on", "--life", "on")
    run_stress(stage, wanted("ops"), 16, *options, seconds_max=_seconds_max())


@check("soak/many-regions", 400, each=("ops", _MANY_TIMES * _SECONDS_EACH))
def soak_of_many_regions(stage: Stage) -> None:
    """A process with almost as many mappings as the kernel allows is served like any other."""
    regions_max = int(Path("/proc/sys/vm/max_map_count").read_text())
    # Each page of its own has a neighbour that nobody may touch: two mappings.
    lone = min(regions_max, 2**17) // 2 - _SPARE_REGIONS
    if lone < _REGIONS_MIN:
        raise CheckSkipped(f"vm.max_map_count is {regions_max}")
    options = ("--life", "on", "--regions", str(lone))
    operations = _MANY_TIMES * wanted("ops")
    run_stress(
        stage, operations, 17, *options, seconds_max=_MANY_TIMES * _seconds_max(), page_outs_min=1
    )
    stage.note(f"{2 * lone} of {regions_max} mappings")

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

_PAGE_OUTS_MIN = 3

_LIFE_SECONDS = 120
_REGIONS_SECONDS = 360
"""What a run takes whatever the number of operations: start, least page outs, end."""


@check("soak/life", _LIFE_SECONDS + 30, each=("ops", _SECONDS_EACH))
def soak(stage: Stage) -> None:
    """Threads move and change mappings, fork, start programs and threads, signal, wait, use THP."""
    options = ("--forks", "on", "--moves", "on", "--life", "on")
    operations = wanted("ops")
    seconds_max = _LIFE_SECONDS + _SECONDS_EACH * operations
    run_stress(stage, operations, 16, *options, seconds_max=seconds_max)


@check("soak/many-regions", _REGIONS_SECONDS + 40, each=("ops", _MANY_TIMES * _SECONDS_EACH))
def soak_of_many_regions(stage: Stage) -> None:
    """A process with almost as many mappings as the kernel allows is served like any other."""
    regions_max = int(Path("/proc/sys/vm/max_map_count").read_text())
    # Each page of its own has a neighbour that nobody may touch: two mappings.
    lone = min(regions_max, 2**17) // 2 - _SPARE_REGIONS
    if lone < _REGIONS_MIN:
        raise CheckSkipped(f"vm.max_map_count is {regions_max}")
    options = ("--life", "on", "--regions", str(lone))
    operations = _MANY_TIMES * wanted("ops")
    seconds_max = _REGIONS_SECONDS + _SECONDS_EACH * operations
    run_stress(
        *(stage, operations, 17, *options), seconds_max=seconds_max, page_outs_min=_PAGE_OUTS_MIN
    )
    stage.note(f"{2 * lone} of {regions_max} mappings")

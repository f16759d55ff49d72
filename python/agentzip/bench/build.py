"""
The benchmark's own C programs: which there are, and where they are once compiled.
"""

from functools import cache
from pathlib import Path

from agentzip.compiler import build_programs

__all__ = ["PROGRAMS", "SOURCES", "ensure_built"]

SOURCES = Path(__file__).parent / "targets"
"""Where the C sources are."""

PROGRAMS = {
    "latency": ["latency.c", "floor.c"],
    "sleeper": ["sleeper.c"],
    "stopper": ["stopper.c", "floor.c"],
}
"""Program name -> its sources."""

_PROTOCOL = Path(__file__).parents[1] / "selftest" / "targets" / "protocol.h"
"""The one header of the self-test's targets that these include by path."""


@cache
def ensure_built() -> Path:
    """
    Compile what is missing or older than its sources; returns the folder of the programs.

    Raises:
        Unsupported: there is no compiler.
        InternalError: the compiler refused a source.
    """
    return build_programs(SOURCES, PROGRAMS, [_PROTOCOL])

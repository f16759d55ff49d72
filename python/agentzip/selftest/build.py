"""
The C targets of the checks: which there are, and where they are once compiled.
"""

import os
from functools import cache
from pathlib import Path

from agentzip.compiler import build_programs
from agentzip.errors import InternalError, Unsupported
from agentzip.selftest.registry import CheckFailed, CheckSkipped

__all__ = ["BIN_VARIABLE", "PROGRAMS", "SOURCES", "ensure_built"]

SOURCES = Path(__file__).parent / "targets"
"""Where the sources of the targets are."""

BIN_VARIABLE = "AGENTZIP_SELFTEST_BIN"
"""Tells child processes where the binaries are, so that they are compiled once per run."""

PROGRAMS = {
    "memory": ["memory.c"],
    "stress": ["stress.c"],
    "tangle": ["tangle.c"],
    "eintr": ["eintr.c"],
    "timed": ["timed.c"],
    "shared": ["shared.c"],
    "seccomp_wrap": ["seccomp_wrap.c"],
    "events": [
        *("events.c", "events_map.c", "events_fork.c", "events_io.c", "events_special.c"),
    ],
}
"""Program name -> its sources."""


@cache
def ensure_built() -> Path:
    """
    Compile what is missing or older than its sources; returns the folder of the binaries.

    Raises:
        CheckSkipped: there is neither a compiler nor a full set of binaries.
        CheckFailed: the compiler refused a source.
    """
    if prepared := os.environ.get(BIN_VARIABLE):
        return Path(prepared)
    try:
        return build_programs(SOURCES, PROGRAMS)
    except Unsupported as missing:
        raise CheckSkipped(str(missing)) from missing
    except InternalError as refused:
        raise CheckFailed(str(refused)) from refused

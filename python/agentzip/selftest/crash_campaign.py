"""
The kill campaign: as many kills as wanted, of daemon and keeper in turn, over targets of all kinds.

`agentzip selftest --suite crash --kills 200` goes through every named step several times.
"""

import shutil
import sys

from agentzip.pager import crash_points
from agentzip.selftest.build import SOURCES
from agentzip.selftest.crowd import crowd_of
from agentzip.selftest.registry import CheckSkipped, check, wanted
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

__all__ = ["campaign"]

_STEP_SECONDS = 2.0
"""How long the load runs in the hope of reaching a named step; then the daemon is killed anyway."""

_RANDOM_SECONDS = 0.6
"""A daemon that is killed at a random moment lives at most so long under load."""

_SECONDS_EACH = 15.0
"""What one kill may take on a busy machine, with the answers of all targets."""


def _others(stage: Stage) -> list[Target]:
    """Five that are unlike the three of every crowd (C, C with threads, C that forks and maps)."""
    node = shutil.which("node")
    if node is None:
        raise CheckSkipped("no node on this host")
    heap = (sys.executable, str(SOURCES / "heap.py"))
    threads = stage.start(*heap, "42")
    threads.ok("threads 4", 60)
    return [
        stage.start(*heap, "41"),
        threads,
        stage.start(*heap, "43", verify="pool"),
        stage.start(node, str(SOURCES / "heap.js"), "44"),
        stage.start(
            *(stage.program("seccomp_wrap"), "errno", "--no-new-privs"),
            *(stage.program("memory"), "16", "45"),
        ),
    ]


@check("crash/campaign", 120, each=("kills", _SECONDS_EACH))
def campaign(stage: Stage) -> None:
    """Daemon and keeper are killed in turn over eight targets: C, CPython, Node, confined."""
    points = list(crash_points())
    reached = set()
    keepers = 0
    with crowd_of(stage, 36, _others(stage)) as crowd:
        crowd.dice.shuffle(points)
        crowd.start()
        crowd.kill()
        for number in range(wanted("kills")):
            turn, part = divmod(number, 3)
            if part == 0:
                point = points[turn % len(points)]
                passes = crowd.dice.randint(1, 4)
                if crowd.live(f"{point}:{passes}", _STEP_SECONDS, reattach="tach" in point):
                    reached.add(point)
            elif part == 1:
                crowd.start()
                crowd.kill_keeper()
                crowd.kill()
                keepers += 1
            else:
                seconds = crowd.dice.uniform(0.0, _RANDOM_SECONDS)
                crowd.live(None, seconds, reattach=turn % 2 == 0)
    stage.note(f"{keepers} keepers; died at {len(reached)} of {len(points)} named steps")

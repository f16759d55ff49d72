"""
Any command in the place of an agent: started in its group, waited for, ended.

Nobody talks to it.  What it writes goes to a file, whose end says why it failed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentzip.children import Child

__all__ = ["INSTANCE_VARIABLE", "Command"]

INSTANCE_VARIABLE = "AGENTZIP_BENCH_INSTANCE"
"""Tells a command which one it is, from 0: each can have data of its own."""

_TOLD_BYTES = 2_000
"""Of what it wrote, told when it failed."""


class Command(Child):
    """
    One running command with all that it starts.

    Args:
        words: The command.
        instance: Which one it is.
        log: Where its output goes.
        group: Folder of the control group that it starts in, and that is its own.
        environment: On top of ours.
        merge: Let KSM merge its pages, should it be run.
    """

    def __init__(
        self,
        words: Sequence[str],
        instance: int,
        log: Path,
        *,
        group: Path,
        environment: Mapping[str, str],
        merge: bool = False,
    ) -> None:
        launcher = [sys.executable, "-m", "agentzip.workloads.launcher", "--group", str(group)]
        launcher += ["--mergeable"] * merge
        self._log, self._group = log, group
        self.began_s = time.perf_counter()
        with log.open("wb") as output:
            super().__init__(
                subprocess.Popen(
                    [*launcher, "--", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **environment, INSTANCE_VARIABLE: str(instance)},
                    start_new_session=True,
                )
            )

    def wait_until_ready(self) -> None:
        """It is whatever it is: nobody knows what it must do first."""

    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self.process.poll()

    def last_words(self) -> str:
        """The end of what it wrote."""
        return self._log.read_bytes()[-_TOLD_BYTES:].decode(errors="replace").strip()

    def end(self) -> None:
        """End it and everything in its group; twice does no harm."""
        self.stop()
        # Commands leave processes behind that are nobody's children any more.
        (self._group / "cgroup.kill").write_text("1")

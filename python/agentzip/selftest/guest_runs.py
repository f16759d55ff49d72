"""
One run of a program that nobody wrote for us, plainly or with its memory taken away all the time.

Which processes the program consists of is found anew before each page out: whatever is below its
first process is attached as it appears.  Neither the program nor its tests know that we are there.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentzip.children import Child
from agentzip.errors import (
    AgentZipError,
    AlreadyAttached,
    AlreadyTraced,
    NoSuchProcess,
    NotAttached,
    PidReused,
    TargetBusy,
    TargetGone,
)
from agentzip.host import processes
from agentzip.pager import Pager
from agentzip.selftest.conditions import describe_threads, wait_until
from agentzip.selftest.registry import CheckFailed

__all__ = ["Ending", "PageOuts", "interpreter", "run_paged", "run_plainly"]

_PAUSE_SECONDS = (0.05, 0.2)
"""Everything is paged out this often: long enough to compute, too short to come home whole."""

_POLL_SECONDS = 0.02

_REST_SECONDS = 6.0
"""How long what a program leaves behind may live: CPython's test_subprocess leaves a `sleep 3`."""

_EXPECTED = (
    AlreadyAttached,
    AlreadyTraced,  # Debuggers are among what the programs test.
    NoSuchProcess,
    NotAttached,
    PidReused,
    TargetBusy,
    TargetGone,
)
"""Answers that processes which come and go by the hundred are bound to give."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    output: str
    """Standard output and errors together."""
    seconds: float


@dataclass(slots=True)
class PageOuts:
    """What was done to a program while it ran."""

    passes: int = 0
    pages_moved: int = 0
    pids: set[int] = field(default_factory=set)
    """Processes from which something was taken."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Expected answers by the name of their error."""

    def __str__(self) -> str:
        """One line for the detail of a result."""
        refused = "".join(f", {count} {name}" for name, count in sorted(self.refusals.items()))
        return (
            f"{self.pages_moved} pages left {len(self.pids)} processes "
            f"in {self.passes} passes{refused}"
        )


def interpreter() -> str:
    """The Python that a virtual environment of ours was made from: it has its own test suite."""
    return str(getattr(sys, "_base_executable", sys.executable))


class _Run(Child):
    """A program at work, its output in a file that cannot fill up and stop it."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        self._started = time.monotonic()
        for number in (signal.SIGINT, signal.SIGQUIT):
            # A shell starts background work with these ignored, and children inherit that; tests of
            # interrupts would then wait for ever.  What is caught here, exec sets to the default.
            signal.signal(number, signal.default_int_handler)
        super().__init__(
            subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment(folder),
            )
        )

    def expect_within(self, seconds_max: float) -> None:
        """
        Look at the clock.

        Raises:
            CheckFailed: the program takes too long, and what each of its threads waits in.
        """
        if time.monotonic() - self._started > seconds_max:
            tree = [self.pid, *(found.pid for found in processes.descendants(self.pid))]
            threads = "; ".join(f"{pid}: {describe_threads(pid)}" for pid in tree)
            raise CheckFailed(
                f"no end within {seconds_max:g} s: {threads}\n{self.output()[-2000:]}"
            )

    def output(self) -> str:
        """What it has written so far."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def ending(self) -> Ending:
        """How it ended, once it has."""
        seconds = time.monotonic() - self._started
        return Ending(self.process.wait(), self.output(), seconds)

    def stop(self) -> None:
        """End what still runs of it; what is below it, the runner ends."""
        super().stop()
        self._output.close()


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of ours: neither the path of our package nor what a check is told by."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "TMPDIR": str(folder)}


def run_plainly(arguments: Sequence[str], folder: Path, seconds_max: float) -> Ending:
    """
    Run a program to its end and leave it alone.

    Raises:
        CheckFailed: it takes longer than `seconds_max`.
    """
    with _Run(arguments, folder) as run:
        while run.alive():
            run.expect_within(seconds_max)
            time.sleep(_POLL_SECONDS)
        return run.ending()


def run_paged(
    engine: Pager, arguments: Sequence[str], folder: Path, seconds_max: float, seed: int
) -> tuple[Ending, PageOuts]:
    """
    Run a program to its end while everything of it is paged out at random moments.

    Raises:
        CheckFailed: it takes longer than `seconds_max`, or an operation on it failed.
    """
    dice = random.Random(seed)  # noqa: S311 - moments, not keys
    done = PageOuts()
    with _Run(arguments, folder) as run:
        while run.alive():
            run.expect_within(seconds_max)
            _take_all(engine, run.pid, done)
            run.ends_within(dice.uniform(*_PAUSE_SECONDS))
        # What it left running ends by itself, or the common end of the check says that it did not.
        wait_until(lambda: not engine.spaces(), _REST_SECONDS)
        return run.ending(), done


def _take_all(engine: Pager, root: int, done: PageOuts) -> None:
    """One pass over every process of the program."""
    done.passes += 1
    for pid in (root, *(found.pid for found in processes.descendants(root))):
        try:
            with suppress(AlreadyAttached):
                engine.attach(pid)
            moved = engine.page_out(pid).pages_moved
        except _EXPECTED as refusal:
            done.refusals[type(refusal).__name__] += 1
        except AgentZipError as error:
            raise CheckFailed(f"page out of {pid} failed: {error!r}") from error
        else:
            done.pages_moved += moved
            if moved:
                done.pids.add(pid)

"""
What a `with` block ends, child processes above all.

A child is ended by its own handle and no other way: never by its name, and never by a number that
may be somebody else's by now.
"""

import subprocess
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Self

__all__ = ["Child", "Stoppable"]

_END_SECONDS = 10
"""How long a killed child may take to go; one whose exit hangs in the kernel is left to it."""


class Stoppable(ABC):
    """Something that must be ended; leaving its `with` block does it."""

    @abstractmethod
    def stop(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


class Child(Stoppable):
    """A child process with the pipes to it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        """Its handle."""
        self.pid = process.pid
        """The process that is meant; another one if what was started is only a wrapper."""

    def alive(self) -> bool:
        """Whether the process we started still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the process we started and to nothing else."""
        if self.process.poll() is None:
            self.process.kill()

    def stop(self) -> None:
        """End the process and close the pipes to it; may be called twice."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

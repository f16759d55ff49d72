"""
What a `with` block ends, child processes above all.

A child is ended by its own handle and no other way: never by its name, and never by a number that
may be somebody else's by now.

Nobody calls `waitpid` for a child that may still live.  If an engine of this process has borrowed
it, that takes a stop away from the thread that traces it (wait(2): a process waits for the tracees
of all of its threads, whatever it asked for), which then waits for it for ever.
"""

import os
import select
import signal
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
        return not self.ends_within(0)

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end, for a while; whether it came."""
        if self.process.returncode is not None:
            return True
        try:
            # It was not waited for, so the number is still its own.
            handle = os.pidfd_open(self.process.pid)
        except ProcessLookupError:
            # It was: by an engine of this process that had borrowed it.
            self.process.wait()
            return True
        try:
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            if not poller.poll(seconds * 1000):
                return False
        finally:
            os.close(handle)
        self.process.wait()
        return True

    def kill(self) -> None:
        """Send SIGKILL to the process we started and to nothing else."""
        if not self.ends_within(0):
            # Not by the handle's own method, which waits.
            os.kill(self.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the process and close the pipes to it; may be called twice."""
        self.kill()
        self.ends_within(_END_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

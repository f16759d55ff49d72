"""
A running target and the line protocol to it.

Every wait has a limit: a target that does not answer is a finding (a page fault that nobody
serves), and the message says what each of its threads is waiting in.  A target is always ended by
its own pid.
"""

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from agentzip.children import Child
from agentzip.selftest.conditions import describe_threads
from agentzip.selftest.registry import CheckFailed, CheckSkipped

__all__ = ["ANSWER_SECONDS", "Target"]

ANSWER_SECONDS = 20.0
"""How long a command may take on a busy machine with everything paged out."""


class Target(Child):
    """
    One process under test.

    Args:
        arguments: Command line; the program prints `ready PID` and then answers line by line.
        verify: Command that makes it check all its memory; empty if it has none.
        env: Environment; None inherits ours.
        ready_seconds: How long it may take to become ready.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        verify: str = "verify",
        env: Mapping[str, str] | None = None,
        ready_seconds: float = 60.0,
    ) -> None:
        self.arguments = list(arguments)
        self.verify_command = verify
        # Lives as long as the target; closed in `stop`.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        super().__init__(
            subprocess.Popen(
                self.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=None if env is None else dict(env),
            )
        )
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self._selector.register(self.process.stdout, selectors.EVENT_READ)
        try:
            self.own_pid = self._read_ready(ready_seconds)
        except BaseException:
            self.stop()
            raise

    def _read_ready(self, seconds: float) -> int:
        line = self.read_line(seconds, "ready")
        if not line.startswith("ready "):
            raise CheckFailed(f"{self.arguments[0]} did not become ready: {line!r}")
        return int(line.split()[1])

    def send(self, line: str) -> None:
        """Send a command without waiting for the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise CheckFailed(f"target is gone before {line!r}: {self.ending()}") from error

    def read_line(self, seconds: float = ANSWER_SECONDS, after: str = "") -> str:
        """
        Wait for the next line of output.

        Raises:
            CheckFailed: none came in time, or the target ended.
        """
        line = self.poll_line(seconds, after)
        if line is None:
            threads = describe_threads(self.process.pid)
            raise CheckFailed(f"no answer within {seconds:g} s to {after!r}; threads: {threads}")
        return line

    def poll_line(self, seconds: float, after: str = "") -> str | None:
        """
        The next line of output, or None if there is none yet.

        Raises:
            CheckFailed: the target ended.
        """
        deadline = time.monotonic() + seconds
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                return None
            block = os.read(self.process.stdout.fileno(), 65536)
            if not block:
                raise CheckFailed(f"target ended instead of answering {after!r}: {self.ending()}")
            self._buffer += block
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode(errors="replace")

    def command(self, line: str, seconds: float = ANSWER_SECONDS) -> str:
        """Send a command and return the answer."""
        self.send(line)
        return self.read_line(seconds, line)

    def ok(self, line: str, seconds: float = ANSWER_SECONDS) -> str:
        """
        Send a command that must succeed; returns what follows `ok`.

        Raises:
            CheckFailed: the answer is another one.
            CheckSkipped: the target says that it cannot do this here.
        """
        answer = self.command(line, seconds)
        if answer.startswith("skip"):
            raise CheckSkipped(answer[5:])
        if answer.split(" ", 1)[0] != "ok":
            raise CheckFailed(f"{line}: {answer}\n{self.errors()}".rstrip())
        return answer[3:]

    def verify(self, seconds: float = ANSWER_SECONDS) -> str:
        """Let the target check all its memory."""
        return self.ok(self.verify_command, seconds) if self.verify_command else ""

    def wait(self, seconds: float) -> int:
        """Wait for the end of the process; returns its exit code (negative: a signal)."""
        if not self.ends_within(seconds):
            threads = describe_threads(self.process.pid)
            raise CheckFailed(f"target still runs after {seconds:g} s: {threads}")
        return int(self.process.returncode)

    def errors(self) -> str:
        """The last part of what it wrote to stderr."""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 2000))
        return self._errors.read().decode(errors="replace").strip()

    def ending(self) -> str:
        """How it ended and what it said last."""
        self.ends_within(1.0)
        return f"exit code {self.process.returncode} {self.errors()}".strip()

    def stop(self) -> None:
        """End the process and free what belongs to it; may be called twice."""
        super().stop()
        self._selector.close()
        self._errors.close()

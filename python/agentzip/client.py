"""
What an agent platform says and asks: `Client`, and `Sandbox` with its waits.

A connection lasts for one word.  So a restarted daemon is found again without further ado, many
threads may speak at once, and nobody who is silent holds one of the daemon's places.

A hint is advice: if nobody hears it, the program goes on, and the log says so once.  Questions and
orders (`sandboxes`, `status`, `pin`) are answered or raise.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agentzip import hints
from agentzip.control import SOCKET_NAME, ControlClient
from agentzip.errors import InvalidSetting, NoSuchSandbox
from agentzip.sandbox.here import WAITS, Advice, Waiting
from agentzip.sandboxes import HintReport, SandboxStatus

__all__ = ["Client", "Sandbox"]

T = TypeVar("T")


class Client:
    """
    Speaks to the daemon of this host; it may be shared by threads and tasks, and used after a fork.

    Args:
        run_dir: Run directory of the daemon, or the path of its socket; None means
            $AGENTZIP_RUN_DIR, else /run/agentzip.
        timeout: Seconds that one answer may take.
        strict: Whether hints raise what they fail with.

    Raises:
        InvalidSetting: the timeout is not above zero.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None = None,
        timeout: float = 10.0,
        *,
        strict: bool = False,
    ) -> None:
        if not timeout > 0:
            raise InvalidSetting(f"timeout must be above zero: {timeout!r}", "give seconds")
        chosen = Path(run_dir or os.environ.get("AGENTZIP_RUN_DIR") or "/run/agentzip")
        self.run_dir = chosen.parent if chosen.name == SOCKET_NAME else chosen
        self.timeout = timeout
        self.strict = strict
        self._advice = Advice("the agentzip daemon")

    def __repr__(self) -> str:
        return f"Client({str(self.run_dir)!r})"

    def sandboxes(self) -> list[SandboxStatus]:
        """
        Every sandbox of the host, sorted by name.

        Raises:
            DaemonUnreachable: nobody answers.
        """
        return self.ask(lambda control: control.sandboxes())

    def sandbox(self, name: str) -> "Sandbox":
        """One sandbox by its name, whether it is there already or not."""
        return Sandbox(self, name)

    def ask(self, work: Callable[[ControlClient], T]) -> T:
        """
        Do something with a connection to the daemon.

        Raises:
            AgentZipError: what the daemon raised.
            DaemonUnreachable: nobody answers.
        """
        with ControlClient(self.run_dir, self.timeout) as control:
            return work(control)

    def advise(self, work: Callable[[ControlClient], T]) -> T | None:
        """
        The same for a hint: None if nobody heard it.

        Raises:
            AgentZipError: what went wrong, from a strict client only.
        """
        return self.ask(work) if self.strict else self._advice.attempt(lambda: self.ask(work))


class Sandbox:
    """
    One sandbox; made by `Client.sandbox`.

    Args:
        client: Who speaks to the daemon.
        name: Name of the sandbox, as `agentzip status` shows it.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"{self._client!r}.sandbox({self.name!r})"

    def hint(self, phase: str, expect: str | float | None = None) -> HintReport | None:
        """
        Say in which phase the sandbox is; one that ends a wait returns when its memory is home.

        Args:
            phase: starting, running, waiting_model, waiting_tool, waiting_user, resuming, finishing
                or done.
            expect: How long it is expected to last: seconds, or text like `8s`.

        Returns:
            What the hint did; None if nobody heard it.

        Raises:
            InvalidSetting: there is no such phase, or no such time.
            AgentZipError: what went wrong, from a strict client only.
        """
        known = hints.known_phase(phase)
        expect_s = hints.expected_seconds(expect)
        return self._client.advise(lambda control: control.hint(self.name, known, expect_s))

    def waiting(self, kind: str, expect: str | float | None = None) -> Waiting:
        """
        The wait for `model`, `tool` or `user`, for `with` and `async with`.

        At the end of the block the sandbox is running again, or in the wait around this one, and
        its memory is home.

        Args:
            kind: What is waited for.
            expect: How long it is expected to last: seconds, or text like `8s`.

        Raises:
            InvalidSetting: there is no such kind, or no such time.
        """
        if kind not in WAITS:
            raise InvalidSetting(
                f"kind of wait is not known: {kind!r}", f"use one of {', '.join(WAITS)}"
            )
        key = (self._client.run_dir, self.name)
        return Waiting(self.hint, key, f"waiting_{kind}", hints.expected_seconds(expect))

    def finishing(self) -> HintReport | None:
        """Say that the work is done but for the result: what it does not need may leave at once."""
        return self.hint("finishing")

    def status(self) -> SandboxStatus:
        """
        The sandbox as the daemon's last tick saw it.

        Raises:
            NoSuchSandbox: there is none of this name.
            DaemonUnreachable: nobody answers.
        """
        for found in self._client.sandboxes():
            if found.name == self.name:
                return found
        raise NoSuchSandbox(f"no such sandbox: {self.name}")

    def pin(self, pinned: bool = True) -> None:
        """
        Keep the sandbox in memory, or give it back to the planner.

        Raises:
            NoSuchSandbox: there is none of this name.
            DaemonUnreachable: nobody answers.
        """
        self._client.ask(lambda control: control.pin(self.name, pinned))

"""A real daemon on its own run directory, and sandboxes in control groups made for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agentzip.control import ControlClient
from agentzip.errors import DaemonUnreachable
from agentzip.host.cgroups import hierarchies
from agentzip.sandboxes import SandboxStatus
from agentzip.selftest.build import ensure_built
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.registry import CheckSkipped
from agentzip.selftest.targets import Target
from source_tree import ROOT

__all__ = ["ACTS", "DaemonStage", "Sleeper", "removed", "stage_of"]

SECONDS = 40.0
"""How long anything may take on a busy machine."""

ACTS = "policy: {watermarks: {start: 2, stop: 1}}\n"
"""A host of which so little is used always has too much in use: the daemon acts."""


class Sleeper(Target):
    """A process in a sandbox's control group that checks its own memory when asked."""

    def __init__(self, folder: Path, mebibytes: int = 8) -> None:
        super().__init__([str(ensure_built() / "memory"), str(mebibytes), "3"])
        self.folder = folder
        (folder / "cgroup.procs").write_text(str(self.pid))

    def freeze(self, frozen: bool) -> None:
        """Stop the whole group, or let it go on."""
        (self.folder / "cgroup.freeze").write_text(str(int(frozen)))


class DaemonStage:
    """
    One daemon at a time, and what it looks after.

    Args:
        folder: For run directory, state, configuration and log.
        top: A control group of the unified hierarchy that is ours.
    """

    def __init__(self, folder: Path, top: Path) -> None:
        self.run_dir = folder / "run"
        self.config = folder / "config.yaml"
        self.log_file = folder / "log"
        self.top = top
        self.pattern = f"agent-sandbox-{os.getpid()}-*"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.sleepers: list[Sleeper] = []
        self._environment = {
            **os.environ,
            "AGENTZIP_STATE_DIR": str(folder / "state"),
            "PYTHONPATH": str(ROOT / "python"),
        }
        self.configure()

    def configure(self, text: str = ACTS, *, scope: bool = True) -> None:
        """Write the configuration, with our sandboxes as its scope."""
        ours = f'scopes: [{{cgroup: "{self.pattern}"}}]\n' if scope else ""
        self.config.write_text(text + ours)

    def name(self, number: int) -> str:
        """The name of a sandbox."""
        return self.pattern.replace("*", str(number))

    def sandbox(self, number: int, mebibytes: int = 8) -> Sleeper:
        """Start a sandbox of one process."""
        folder = self.top / self.name(number)
        folder.mkdir(exist_ok=True)
        self.sleepers.append(Sleeper(folder, mebibytes))
        return self.sleepers[-1]

    def start(
        self, *, stderr: int | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """
        Start the daemon, and wait until it answers.

        Args:
            stderr: Where its log goes; None for our file.
            environment: What its own adds to; None for ours.
        """
        with self.log_file.open("ab") as log:
            self.daemon = subprocess.Popen(
                [*self.words(), "daemon", "--config", str(self.config)],
                env={**(environment or {}), **self._environment},
                stdout=subprocess.DEVNULL,
                stderr=log if stderr is None else stderr,
            )
        self.until("the daemon answers", self._answers)

    def stop(self) -> int:
        """End the daemon as a service manager does; its exit code."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait(SECONDS)

    def kill(self) -> None:
        """End the daemon as nothing should."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait(SECONDS)

    def client(self) -> ControlClient:
        """A connection to the daemon."""
        return ControlClient(self.run_dir, timeout_seconds=SECONDS)

    def words(self) -> list[str]:
        """The command line up to the command."""
        return [sys.executable, "-m", "agentzip", "--run-dir", str(self.run_dir)]

    def cli(self, *words: str, code: int = 0) -> str:
        """One command; what it prints."""
        done = subprocess.run(
            [*self.words(), *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=2 * SECONDS,
            check=False,
        )
        assert code == done.returncode, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def popen(self, *words: str) -> "subprocess.Popen[bytes]":
        """A command that goes on."""
        return subprocess.Popen(
            [*self.words(), *words],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def json(self, *words: str) -> Any:
        """One command that prints JSON."""
        return json.loads(self.cli(*words, "--json"))

    def status(self, name: str) -> SandboxStatus | None:
        """One sandbox as the daemon sees it; None if it does not."""
        with self.client() as client:
            return next((one for one in client.sandboxes() if one.name == name), None)

    def until(self, what: str, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait for something."""
        assert wait_until(condition, seconds), f"never: {what}\n{self.told()}\n{self.log()[-3000:]}"

    def attached(self, number: int) -> None:
        """Wait until a sandbox is looked after."""
        name = self.name(number)
        self.until(f"{name} is attached", lambda: bool((one := self.status(name)) and one.pids))

    def out(self, number: int, pages: int = 1500) -> SandboxStatus:
        """
        Announce a long wait, and wait until so much of a sandbox is out.

        Announced, because on a busy host a wait of unknown length pays only after minutes.
        """
        name = self.name(number)
        self.attached(number)
        with self.client() as client:
            client.hint(name, "waiting_user", 600)
        self.until(f"{name} is out", lambda: self._pages_out(name) >= pages)
        found = self.status(name)
        assert found is not None
        return found

    def log(self) -> str:
        """What the daemons have logged."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def told(self) -> str:
        """What the daemon says of each sandbox, for a failure's message."""
        with suppress(DaemonUnreachable), self.client() as client:
            return "\n".join(
                f"{one}\n  {[decision.reason for decision in client.explain(one.name)[:3]]}"
                for one in client.sandboxes()
                if one.name.isprintable()
            )
        return "the daemon does not answer"

    def close(self) -> None:
        """End everything; a daemon that was killed is started once more to give back."""
        for sleeper in self.sleepers:
            sleeper.stop()
        if self.daemon is None:
            return
        if self.daemon.poll() is None:
            self.stop()
        if self.daemon.returncode < 0:
            self.start()
            self.stop()

    def _pages_out(self, name: str) -> int:
        found = self.status(name)
        # As the engine has it now: a status is as old as the last tick.
        with self.client() as client:
            pages = {space.pid: space.pages_out for space in client.spaces()}
        return sum(pages.get(pid, 0) for pid in found.pids) if found else 0

    def _answers(self) -> bool:
        assert self.daemon is not None
        assert self.daemon.poll() is None, f"the daemon ended: {self.log()[-3000:]}"
        # For a moment the keeper of a killed daemon has its sockets; nobody answers there.
        with suppress(DaemonUnreachable), self.client() as client:
            return bool(client.about()["pid"] == self.daemon.pid)
        return False


@contextmanager
def stage_of(folder: Path) -> Iterator[DaemonStage]:
    """A stage in a control group of its own; nothing stays."""
    if os.geteuid() != 0:
        pytest.skip("processes of others can be attached by root only")
    unified = next((found for found in hierarchies() if found.version == 2), None)
    if unified is None:
        pytest.skip("no unified hierarchy of control groups on this host")
    try:
        ensure_built()
    except CheckSkipped as missing:
        pytest.skip(str(missing))
    top = Path(unified.mount) / f"agentzip-test-{os.getpid()}"
    top.mkdir()
    stage = DaemonStage(folder, top)
    try:
        yield stage
    finally:
        try:
            stage.close()
        finally:
            assert wait_until(lambda: removed(top), 10), f"control groups stay below {top}"


def removed(top: Path) -> bool:
    """Whether a control group with all below it is gone; one still counts who has just ended."""
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)
    return not top.exists()

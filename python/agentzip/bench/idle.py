"""
What the daemon takes of a host on which nothing happens.

Many small processes, each in a control group of its own, sleep; the real daemon, a process of its
own with its keeper, looks after all of them.  What the two take of the processors is read from the
kernel, as a share of one core.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentzip.bench.build import ensure_built
from agentzip.children import Child
from agentzip.control import ControlClient
from agentzip.errors import DaemonUnreachable, InternalError, Unsupported
from agentzip.host.cgroups import hierarchies
from agentzip.host.processors import seconds_taken
from agentzip.sandboxes import WAITS

__all__ = ["SHARE_AIM", "IdlePlan", "IdleResult", "run_idle", "to_json"]

SHARE_AIM = 0.02
"""Of one core, that daemon and keeper together may take of a host with 300 idle sandboxes."""

_READY_SECONDS_MAX = 120.0
"""Until all are attached and seen to wait; 300 take some seconds, on a busy host more."""

_SETTLE_SECONDS = 7.0
"""Then new processes are settled for the registry, which reads them again until then."""

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class IdlePlan:
    """How much to measure."""

    sandboxes: int = 300
    seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class IdleResult:
    """What was taken while nothing happened."""

    plan: IdlePlan
    attach_s: float
    """From the daemon's start until all were attached and seen to wait."""
    elapsed_s: float
    daemon_cpu_s: float
    keeper_cpu_s: float
    load: float
    """Of the host during the last minute: on a busy one a second of processor time does less."""

    @property
    def share_of_core(self) -> float:
        """Processor time of both for each second of the window."""
        return (self.daemon_cpu_s + self.keeper_cpu_s) / self.elapsed_s


def to_json(result: IdleResult) -> dict[str, Any]:
    """The object that `agentzip bench idle --json` prints."""
    plain = asdict(result)
    return {**plain.pop("plan"), **plain, "share_of_core": result.share_of_core, "aim": SHARE_AIM}


def run_idle(plan: IdlePlan, say: Callable[[str], None] = lambda _text: None) -> IdleResult:
    """
    Measure; nothing is left behind.

    Raises:
        Unsupported: there is no unified hierarchy of control groups, or no C compiler.
        InternalError: the daemon did not start, or did not attach all.
    """
    program = ensure_built() / "sleeper"
    with ExitStack() as stack:
        name = f"agent-sandbox-idle-{os.getpid()}"
        top = stack.enter_context(_group_of_groups(name))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentzip-idle-")))
        say(f"starting {plan.sandboxes} sandboxes")
        for number in range(plan.sandboxes):
            stack.enter_context(_sleeper(program, top / f"{name}-{number}"))
        config = folder / "config.yaml"
        config.write_text(f'scopes:\n  - cgroup: "{name}-*"\n')
        began = time.monotonic()
        daemon = stack.enter_context(_daemon(folder, config))
        say("waiting until all are attached and quiet")
        _until_quiet(daemon, folder / "run", plan.sandboxes)
        attach_s = time.monotonic() - began
        time.sleep(_SETTLE_SECONDS)
        say(f"measuring for {plan.seconds:.0f} s")
        with ControlClient(folder / "run") as client:
            keeper_pid = client.stats().keeper_pid
        pids = (daemon.pid, keeper_pid)
        before, started = [seconds_taken(pid) for pid in pids], time.monotonic()
        time.sleep(plan.seconds)
        after, elapsed_s = [seconds_taken(pid) for pid in pids], time.monotonic() - started
    return IdleResult(
        plan=plan,
        attach_s=attach_s,
        elapsed_s=elapsed_s,
        daemon_cpu_s=round(after[0] - before[0], 3),
        keeper_cpu_s=round(after[1] - before[1], 3),
        load=os.getloadavg()[0],
    )


@contextmanager
def _group_of_groups(name: str) -> Iterator[Path]:
    """A control group for all others, not itself one that the daemon is told of."""
    unified = next((found for found in hierarchies() if found.version == 2), None)
    if unified is None:
        raise Unsupported("no unified hierarchy of control groups is mounted here")
    top = Path(unified.mount) / f"agentzip-test-{name}"
    top.mkdir()
    try:
        yield top
    finally:
        deadline = time.monotonic() + 5
        # A group counts who has just ended for a moment.
        while top.exists() and time.monotonic() < deadline:
            for folder in (*top.glob("*/"), top):
                with suppress(OSError):
                    folder.rmdir()
            time.sleep(0.01)


@contextmanager
def _sleeper(program: Path, group: Path) -> Iterator[None]:
    group.mkdir()
    with Child(subprocess.Popen([program])) as child:
        (group / "cgroup.procs").write_text(str(child.pid))
        yield


@contextmanager
def _daemon(folder: Path, config: Path) -> Iterator[Child]:
    """The real daemon; told to end, it gives everybody back."""
    environment = {**os.environ, "AGENTZIP_STATE_DIR": str(folder / "state")}
    command = [sys.executable, "-m", "agentzip", "--run-dir", str(folder / "run")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "daemon", "--config", str(config)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    with Child(process) as daemon:
        yield daemon
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=150)


def _until_quiet(daemon: Child, run_dir: Path, sandboxes: int) -> None:
    deadline = time.monotonic() + _READY_SECONDS_MAX
    ready = 0
    while ready < sandboxes:
        if not daemon.alive() or time.monotonic() > deadline:
            log = (run_dir.parent / "log").read_text(errors="replace")
            raise InternalError(f"{ready} of {sandboxes} were attached and quiet: {log[-2000:]}")
        time.sleep(_LOOK_SECONDS)
        with suppress(DaemonUnreachable), ControlClient(run_dir) as client:
            ready = sum(bool(one.pids) and one.phase in WAITS for one in client.sandboxes())

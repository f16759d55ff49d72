"""
`full`: the real daemon, which finds the sandboxes by a cgroup pattern and hears hints.

The bench plays the orchestrator: it says when a sandbox begins to wait for the model, with the
mean think time as the expectation (it cannot know more), when the answer begins to come, and when
it is there.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from agentzip.bench.fanout.crew import Crew, Member
from agentzip.bench.fanout.engine_modes import footprint_of, habits_of, pages_of
from agentzip.bench.fanout.modes import Mode, Worker, cpu_seconds, kernel_thread_seconds
from agentzip.bench.fanout.plan import CODECS, WATERMARKS, FanoutPlan
from agentzip.bench.fanout.profile import Pages
from agentzip.bench.fanout.readings import Cpu, Footprint, Habits
from agentzip.children import Child
from agentzip.control import ControlClient
from agentzip.errors import AgentZipError, DaemonUnreachable, InternalError, NoSuchSandbox
from agentzip.fleet.sandbox_socket import SANDBOX_SOCKET

__all__ = ["FullMode"]

_START_SECONDS = 30.0
_FIND_SECONDS = 30.0
"""A sandbox is found within a tick; a loaded host takes longer."""

_END_SECONDS = 150.0
"""The daemon's own deadline is two minutes."""


class _DaemonChild(Child):
    """`agentzip daemon` in the foreground, as an operator starts it."""

    def __init__(self, run_dir: Path, config: Path, group: Path, log: Path) -> None:
        launcher = [sys.executable, "-m", "agentzip.workloads.launcher", "--lives-on"]
        program = [sys.executable, "-m", "agentzip", "--run-dir", str(run_dir)]
        with log.open("ab") as messages:
            super().__init__(
                subprocess.Popen(
                    [
                        *(*launcher, "--group", str(group), "--"),
                        *(*program, "daemon", "--config", str(config)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=messages,
                    stderr=messages,
                    start_new_session=True,
                )
            )

    def stop(self) -> None:
        """Let it give everything back; killed if it does not come to an end."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            if self.process.wait(_END_SECONDS):
                raise InternalError("the daemon of the bench failed: see its log")
        finally:
            super().stop()


class FullMode(Mode):
    """The daemon with everything: phases, planner, tiers, prefetch."""

    name = "full"
    infers = True

    def __init__(self, folder: Path, plan: FanoutPlan) -> None:
        self._run_dir = folder / "run"
        self._socket = self._run_dir / SANDBOX_SOCKET
        self._config = folder / "config.yaml"
        self._log = folder / "daemon.log"
        self._plan = plan
        self._crew: Crew | None = None
        self._daemon: _DaemonChild | None = None
        self._worker = Worker()
        self._replacing = threading.Lock()
        self._names: dict[int, str] = {}
        self._lives_cpu_s, self._lives_faults = 0.0, 0
        """Of daemons that were killed."""
        self._kills = self._hints_lost = 0

    def start(self, crew: Crew) -> None:
        """Write the configuration and start the daemon."""
        self._crew = crew
        policy: dict[str, object] = {"watermarks": WATERMARKS}
        if self._plan.latency_target_s is not None:
            policy["latency_target"] = f"{self._plan.latency_target_s * 1000:g}ms"
        chosen = CODECS[self._plan.codec]
        policy |= chosen.get("policy", {})
        config = {
            **chosen,
            "scopes": [{"cgroup": crew.places.pattern}],
            "policy": policy,
            "hints": {"sandbox_socket": str(self._socket)},
        }
        # JSON is YAML.
        self._config.write_text(json.dumps(config))
        self._start_daemon()

    def environment(self) -> dict[str, str]:
        """Where a command says what it waits for, if it does."""
        return {"AGENTZIP_SANDBOX_SOCKET": str(self._socket)}

    def add(self, member: Member) -> None:
        """Wait until the daemon has found it, unless it is gone first, as commands may be."""
        deadline = time.monotonic() + _FIND_SECONDS
        while member.instance not in self._names:
            with self._client() as client:
                for found in client.sandboxes():
                    if Path(found.cgroup).name == member.group.name:
                        self._names[member.instance] = found.name
            if not member.pids():
                return
            if time.monotonic() > deadline:
                raise InternalError(f"the daemon does not find {member.group.name}")
            time.sleep(0.1)

    def idle(self, member: Member) -> None:
        """Say that it waits, and for whom."""
        self._worker.give(member, self._say_waiting)

    def resume(self, member: Member) -> bool:
        """Say that it is about to go on."""
        self._worker.drop(member)
        self._hint(member, "resuming", None)
        return False

    def wake(self, member: Member) -> None:
        """Say that it goes on; returns when its working set is home."""
        self._worker.drop(member)
        self._hint(member, "running", None)

    def at_half(self) -> None:
        """Kill the daemon, if that was asked for, and start the next one."""
        if self._plan.kill_daemon:
            threading.Thread(target=self._replace, name="killer").start()

    def footprint(self) -> Footprint:
        """Pool, tables, daemon and keeper."""
        with self._replacing, self._client() as client:
            assert self._daemon is not None
            return footprint_of(client.call("stats"), self._daemon.pid)

    def cpu(self) -> Cpu:
        """Of every daemon of this run and the keeper."""
        with self._replacing, self._client() as client:
            assert self._daemon is not None
            return Cpu(
                daemon=self._lives_cpu_s + cpu_seconds(self._daemon.pid),
                keeper=cpu_seconds(client.stats().keeper_pid),
                kernel=kernel_thread_seconds("kswapd"),
            )

    def faults(self) -> int:
        """Faults that were answered, without first touches of new memory."""
        with self._replacing, self._client() as client:
            return self._lives_faults + _refaults(client)

    def habits(self, member: Member) -> Habits | None:
        """Counters over the sandbox's processes; None while there is no daemon to ask."""
        with contextlib.suppress(DaemonUnreachable), self._client() as client:
            return habits_of(client.call("status")["spaces"], set(member.pids()))
        return None

    def page_outs_s(self) -> float:
        """As the daemon tells of its sandboxes; those of a daemon that was killed are lost."""
        with self._replacing, self._client() as client:
            return sum(one.cpu_s for one in client.sandboxes())

    def pages(self, member: Member) -> Pages:
        """Pages of the sandbox's processes; none while there is no daemon to ask."""
        with contextlib.suppress(DaemonUnreachable), self._client() as client:
            return pages_of(client.call("status")["spaces"], set(member.pids()))
        return Pages()

    def notes(self) -> dict[str, object]:
        """What happened to the daemon, and what it says of its sandboxes."""
        with self._client() as client:
            found = client.sandboxes()
            lost = client.stats().pages_lost
        left_alone = sorted({one.left_alone for one in found if one.left_alone})
        return {
            "pages_lost": lost,
            "daemon_kills": self._kills,
            "hints_lost": self._hints_lost,
            "left_alone": left_alone,
        }

    def stop(self) -> None:
        """Let the daemon give everything back."""
        self._worker.close()
        with self._replacing:
            if self._daemon is not None:
                self._daemon.stop()
                self._daemon = None
        if failure := self._worker.failure():
            raise failure

    def _say_waiting(self, member: Member) -> None:
        assert self._crew is not None
        plan = self._crew.plan
        if not member.waiting:
            return
        if plan.workload_of(member.instance).waits_for == "user":
            # How long a person takes nobody knows.
            self._hint(member, "waiting_user", None)
        else:
            self._hint(member, "waiting_model", plan.think_s)

    def _hint(self, member: Member, phase: str, expect_s: float | None) -> None:
        try:
            with self._client() as client:
                client.hint(self._names[member.instance], phase, expect_s)
        except (DaemonUnreachable, NoSuchSandbox):
            # A hint is a kindness: without it the sandbox goes on all the same.
            self._hints_lost += 1

    def _client(self) -> ControlClient:
        return ControlClient(self._run_dir)

    def _start_daemon(self) -> None:
        assert self._crew is not None
        self._daemon = _DaemonChild(
            self._run_dir, self._config, self._crew.places.daemon, self._log
        )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(AgentZipError), self._client() as client:
                client.ping()
                return
            if not self._daemon.alive() or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace")[-2000:]
                raise InternalError(f"the daemon did not start: {said}")
            time.sleep(0.05)

    def _replace(self) -> None:
        with self._replacing:
            assert self._daemon is not None
            with self._client() as client:
                self._lives_faults += _refaults(client)
            self._lives_cpu_s += cpu_seconds(self._daemon.pid)
            # The plain end of a child is kill -9; the daemon's own would let it give back.
            Child.stop(self._daemon)
            self._kills += 1
            self._start_daemon()


def _refaults(client: ControlClient) -> int:
    stats = client.stats()
    return stats.faults - stats.faults_zero

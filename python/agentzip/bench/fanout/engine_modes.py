"""
`encode` and `prefetch`: the engine alone, told by the bench what to do.

`encode` pages a sandbox out when it begins to wait, and its pages come back by faults.  `prefetch`
adds the learned set: brought home before the sandbox runs when its wake is announced.  Neither has
a schedule: no temperatures, no planner, no colder tiers.
"""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from agentzip.bench.fanout.crew import Crew, Member
from agentzip.bench.fanout.engine_process import SOCKET_NAME
from agentzip.bench.fanout.modes import Mode, Worker, cpu_seconds, kernel_thread_seconds
from agentzip.bench.fanout.profile import Pages
from agentzip.bench.fanout.readings import Cpu, Footprint, Habits
from agentzip.children import Child
from agentzip.errors import InternalError
from agentzip.host import memory

__all__ = ["EncodeMode", "PrefetchMode", "footprint_of", "habits_of", "pages_of"]

_GONE = {"TargetGone", "NoSuchProcess", "NotAttached"}
"""Browsers end their spare processes as they like."""

_END_SECONDS = 90.0


class _EngineChild(Child):
    """The process of engine_process.py."""

    def __init__(self, run_dir: Path, pool_bytes: int, group: Path) -> None:
        launcher = [sys.executable, "-m", "agentzip.workloads.launcher", "--lives-on"]
        program = [sys.executable, "-m", "agentzip.bench.fanout.engine_process"]
        pipe = subprocess.PIPE
        super().__init__(
            subprocess.Popen(
                [*launcher, "--group", str(group), "--", *program, str(run_dir), str(pool_bytes)],
                stdin=pipe,
                stdout=pipe,
                start_new_session=True,
            )
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith(b"ready"):
            self.stop()
            raise InternalError("the engine of the bench did not start")

    def stop(self) -> None:
        """Let it give everything back; killed if it does not come to an end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            if self.process.wait(_END_SECONDS):
                raise InternalError("the engine of the bench failed: see the messages above")
        finally:
            super().stop()


class EncodeMode(Mode):
    """Out at the beginning of every wait, back by faults."""

    name = "encode"
    prefetch = False

    def __init__(self, folder: Path) -> None:
        self._run_dir = folder / "run"
        self._engine: _EngineChild | None = None
        self._worker = Worker()
        self._local = threading.local()
        self._attached: dict[int, set[int]] = {}
        self._refused: list[str] = []

    def start(self, crew: Crew) -> None:
        """Start the engine; its pool has room for all sandboxes, encoded or not."""
        pool = 2 * crew.plan.rss_bytes + 2**30
        self._engine = _EngineChild(self._run_dir, pool, crew.places.engine)

    def add(self, member: Member) -> None:
        """Attach every process."""
        self._attach(member)

    def idle(self, member: Member) -> None:
        """Have it paged out."""
        self._worker.give(member, self._page_out)

    def wake(self, member: Member) -> None:
        """Pages come by faults; what has not left stays."""
        self._announce(member, "stay")

    def footprint(self) -> Footprint:
        """Pool, tables, engine process and keeper."""
        assert self._engine is not None
        return footprint_of(self._ask("state")["stats"], self._engine.pid)

    def cpu(self) -> Cpu:
        """Of the engine's process and the keeper."""
        assert self._engine is not None
        keeper = int(self._ask("state")["stats"]["keeper_pid"])
        return Cpu(
            daemon=cpu_seconds(self._engine.pid),
            keeper=cpu_seconds(keeper),
            kernel=kernel_thread_seconds("kswapd"),
        )

    def faults(self) -> int:
        """Faults that the engine answered, without first touches of new memory."""
        stats = self._ask("state")["stats"]
        return int(stats["faults"]) - int(stats["faults_zero"])

    def page_outs_s(self) -> float:
        """As the engine told of each."""
        return float(self._ask("state")["page_outs_s"])

    def pages(self, member: Member) -> Pages:
        """Pages of the sandbox's processes."""
        return pages_of(self._ask("state")["spaces"], self._attached.get(member.instance, set()))

    def notes(self) -> dict[str, object]:
        """Pages lost, which must be none, and who could not be attached."""
        lost = self._ask("state")["stats"]["pages_lost"]
        return {"pages_lost": lost, "refused": sorted(set(self._refused))}

    def stop(self) -> None:
        """Give every sandbox back and end the engine."""
        self._worker.close()
        failure = self._worker.failure()
        if self._engine is not None:
            self._engine.stop()
            self._engine = None
        if failure is not None:
            raise failure

    def _attach(self, member: Member) -> list[int]:
        """Attach what is new; all attached pids that live."""
        known = self._attached.setdefault(member.instance, set())
        living = member.pids()
        for pid in living:
            if pid in known:
                continue
            try:
                if self._ask("add", pid=pid, prefetch=self.prefetch) is not _NOTHING:
                    known.add(pid)
            except InternalError as refusal:
                self._refused.append(str(refusal))
        known &= set(living)
        return sorted(known)

    def _announce(self, member: Member, call: str) -> None:
        self._worker.drop(member)
        for pid in sorted(self._attached.get(member.instance, ())):
            self._ask(call, pid=pid)

    def _page_out(self, member: Member) -> None:
        for pid in self._attach(member):
            if member.waiting:
                self._ask("out", pid=pid)

    def _ask(self, call: str, **named: object) -> Any:
        """Ask the engine, each thread over a connection of its own; `_NOTHING` for gone ones."""
        stream = getattr(self._local, "stream", None)
        if stream is None:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            link.connect(str(self._run_dir / SOCKET_NAME))
            stream = self._local.stream = link.makefile("rwb")
            link.close()
        stream.write(json.dumps({"call": call, **named}).encode() + b"\n")
        stream.flush()
        line = stream.readline()
        if not line:
            raise InternalError("the engine of the bench ended")
        answer = json.loads(line)
        if answer.get("kind") in _GONE:
            return _NOTHING
        if "error" in answer:
            raise InternalError(f"{call}: {answer['error']}")
        return answer["result"]


class PrefetchMode(EncodeMode):
    """As `encode`, and the learned set is home before a sandbox goes on."""

    name = "prefetch"
    prefetch = True

    def resume(self, member: Member) -> bool:
        """Announce the wake before anybody waits for it."""
        self.wake(member)
        return True

    def wake(self, member: Member) -> None:
        """Announce the wake; returns when what is needed first is home."""
        self._announce(member, "wake")

    def habits(self, member: Member) -> Habits | None:
        """Counters over the sandbox's processes."""
        return habits_of(self._ask("state")["spaces"], self._attached.get(member.instance, set()))


_NOTHING = object()
"""The answer about a process that has ended."""


def footprint_of(stats: dict[str, Any], pid: int) -> Footprint:
    """What an engine takes, by its counters and the memory of its processes."""
    tables = sum(int(stats[name]) for name in ("table_bytes", "index_bytes", "dictionary_bytes"))
    pids = [pid, int(stats["keeper_pid"])]
    overhead, files = memory.own_overhead(pids), memory.sum_use(pids).pss_file
    return Footprint(int(stats["pool_bytes"]), tables, overhead, files)


def habits_of(spaces: list[dict[str, Any]], pids: set[int]) -> Habits:
    """Prefetch counters of some processes, added up."""
    total = Habits()
    for space in spaces:
        if space["pid"] in pids:
            total += Habits(
                spared=int(space["pages_spared"]),
                spared_touched=int(space["pages_spared_touched"]),
                prefetched=int(space["pages_prefetched"]),
                missed=int(space["pages_missed"]),
            )
    return total


def pages_of(spaces: list[dict[str, Any]], pids: set[int]) -> Pages:
    """Pages of some processes, added up."""
    chosen = [space for space in spaces if space["pid"] in pids]
    return Pages(
        out=sum(int(space["pages_out"]) for space in chosen),
        kept=sum(int(space["pages_kept"]) for space in chosen),
        learned=sum(int(space["learned_pages"]) for space in chosen),
        prefetched=sum(int(space["pages_prefetched"]) for space in chosen),
        refaults=sum(int(space["faults"]) - int(space["faults_zero"]) for space in chosen),
    )

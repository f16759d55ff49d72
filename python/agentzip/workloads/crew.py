"""
Several instances of one workload: their data, their start, talking to them, their end.

    with crew("json", 8, folder) as sandboxes:
        before = [sandbox.digest() for sandbox in sandboxes]

The processes are sessions of their own, so that Ctrl-C reaches only the bench, which ends them;
should the bench be killed, the kernel ends them (launcher.py).
"""

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentzip.errors import InternalError, InvalidSetting, TargetGone
from agentzip.host import processes
from agentzip.uniform import fixed_addresses, uniform_command
from agentzip.workloads.catalogue import WORKLOADS
from agentzip.workloads.devtools import chromium

__all__ = ["KINDS", "Material", "Sandbox", "Turn", "crew", "for_all", "make_material", "why_not"]

KINDS = ("python", "json", "browser", "node")
"""The workloads, in the order in which they are measured."""

_NEEDS = {"python": ("numpy", "pandas"), "json": ("pydantic",)}
"""Python packages of each."""

_PROGRAMS = {
    "python": "python_agent",
    "json": "json_agent",
    "browser": "browser_agent",
    "node": "node_agent.js",
}

_ANSWER_SECONDS = 300.0
"""The longest command, a digest with everything out on a loaded host, takes some seconds."""

_START_SECONDS = 600.0
"""Eight browsers on two cores take a minute."""

_END_SECONDS = 10.0

_LEAVE_SECONDS = 60.0
"""An agent that ends by itself has its memory come home first, where that is needed."""

_AT_ONCE = os.cpu_count() or 1

T = TypeVar("T")


def why_not(name: str) -> str:
    """Why one of `KINDS` or `WORKLOADS` cannot run on this host; empty if it can."""
    workload = WORKLOADS.get(name)
    needs = workload.packages if workload is not None else _NEEDS.get(name, ())
    missing = [package for package in needs if importlib.util.find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} is not installed"
    kind = workload.kind if workload is not None else name
    if kind == "browser" and (chromium() is None or shutil.which("bash") is None):
        return "no chromium on this host"
    if kind == "node" and shutil.which("node") is None:
        return "no node on this host"
    return ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn, as seen from whoever sent it."""

    recalled: str
    """Digest over the state that every turn needs."""
    answer: dict[str, Any]
    recall_s: float
    """Until the first line came: the sandbox is awake."""
    elapsed_s: float


class Sandbox:
    """
    One running instance; for the browser it is a tree of processes.

    Args:
        kind: One of `KINDS` or `WORKLOADS`.
        instance: Which share of all documents it holds.
        folder: Where its data files are.
        uniform: Start it like all others: no address randomisation, fixed hash seeds.
        merge: Let KSM merge its pages, should it be run.
        group: Folder of the control group that it starts in; None for that of the caller.
    """

    def __init__(
        self,
        kind: str,
        instance: int,
        folder: Path,
        *,
        uniform: bool = False,
        merge: bool = False,
        group: Path | None = None,
    ) -> None:
        self.kind = kind
        self.instance = instance
        launcher = [sys.executable, "-m", "agentzip.workloads.launcher"]
        launcher += ["--mergeable"] * merge
        launcher += ["--group", str(group)] if group is not None else []
        words, environment = [*_command(kind), str(folder)], _environment()
        if uniform:
            words, environment = uniform_command(words, environment)
        self._pending = b""
        with fixed_addresses() if uniform else contextlib.nullcontext():
            self._process = subprocess.Popen(
                [*launcher, "--", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        """Wait for the end of the loading."""
        self._answer(_START_SECONDS)

    def pids(self) -> list[int]:
        """Every living process of it, the first one first."""
        below = [found.pid for found in processes.descendants(self.pid) if found.state not in "ZX"]
        return [self.pid, *below]

    def step(self, number: int) -> tuple[dict[str, Any], float]:
        """
        One tool call; the same one again takes its changes back.

        Returns:
            The answer, and how long it took as seen from here in seconds.
        """
        started = time.perf_counter()
        answer: dict[str, Any] = self._ask(f"step {number}")["answer"]
        return answer, time.perf_counter() - started

    def turn(self, number: int, choice: int) -> Turn:
        """
        One whole turn of one of `WORKLOADS`.

        Args:
            number: Which turn, from 0.
            choice: What the model answered; the tool call follows from it.
        """
        started = time.perf_counter()
        recalled = str(self._ask(f"turn {number} {choice}")["recalled"])
        awake = time.perf_counter()
        answer: dict[str, Any] = self._answer(_ANSWER_SECONDS)["answer"]
        return Turn(recalled, answer, awake - started, time.perf_counter() - started)

    def digest(self) -> str:
        """Digest over all that it holds, made by itself."""
        return str(self._ask("digest")["digest"])

    def leave(self) -> None:
        """
        Let it end by itself, as an agent does whose work is done.

        Raises:
            InternalError: it does not, or not well.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        who = f"{self.kind} {self.instance} (process {self.pid})"
        try:
            code = self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise InternalError(f"{who} does not end") from error
        if code:
            raise InternalError(f"{who} ended with exit code {code}")

    def end(self) -> None:
        """End it and everything below it; twice does no harm."""
        tree = processes.descendants(self.pid) if self._process.poll() is None else []
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        # It need not end by itself: nothing of it is worth keeping.
        self._process.kill()
        for found in tree:
            if processes.is_alive(found.pid, found.start_time):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found.pid, signal.SIGKILL)
        self._process.wait(_END_SECONDS)
        _await_end(tree)

    def _ask(self, question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{question}\n".encode())
        except BrokenPipeError as error:
            raise TargetGone(f"{self.kind} {self.instance} (process {self.pid}) died") from error
        return self._answer(_ANSWER_SECONDS)

    def _answer(self, seconds_max: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds_max
        who = f"{self.kind} {self.instance} (process {self.pid})"
        while b"\n" not in self._pending:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([output], [], [], left)[0]:
                raise InternalError(f"{who} does not answer")
            piece = os.read(output, 65_536)
            if not piece:
                raise TargetGone(f"{who} died", "what it wrote to stderr says why")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise InternalError(f"{who}: {answer['error']}")
        return answer


@contextlib.contextmanager
def crew(
    kind: str,
    count: int,
    folder: Path,
    *,
    size: float = 1.0,
    uniform: bool = False,
    merge: bool = False,
) -> Iterator[list[Sandbox]]:
    """
    Instances that have loaded their data and wait; ended on the way out.

    Args:
        kind: One of `KINDS`.
        count: How many; each gets its own share of all documents.
        folder: Where their data files are made.
        size: How large, 1.0 being some 100 MB each.
        uniform: Start them alike: no address randomisation, fixed hash seeds.
        merge: Let KSM merge their pages, should it be run.

    Raises:
        InvalidSetting: this host cannot run the workload.
    """
    if reason := why_not(kind):
        raise InvalidSetting(f"workload {kind} cannot run here: {reason}", "choose another one")
    # Two digits, so that the lengths of command lines do not move stacks.
    folders = [folder / f"{kind}-{instance:02}" for instance in range(count)]
    make_material([Material(kind, own, size) for own in folders])
    sandboxes: list[Sandbox] = []
    try:
        # A batch at a time; the starts are in this thread, whose end would be the instances' end.
        for first in range(0, count, _AT_ONCE):
            batch = range(first, min(first + _AT_ONCE, count))
            sandboxes += [
                Sandbox(kind, instance, folders[instance], uniform=uniform, merge=merge)
                for instance in batch
            ]
            for instance in batch:
                sandboxes[instance].wait_until_ready()
        yield sandboxes
    finally:
        for sandbox in sandboxes:
            sandbox.end()


def for_all(sandboxes: Sequence[Sandbox], work: Callable[[Sandbox], T]) -> list[T]:
    """Do the same for every sandbox, some at once; results in their order."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="crew") as pool:
        return list(pool.map(work, sandboxes))


@dataclass(frozen=True, slots=True)
class Material:
    """The data files of one instance."""

    kind: str
    """One of `KINDS`, or what a workload names."""
    folder: Path
    size: float
    """As for `crew`."""


def make_material(wanted: Sequence[Material]) -> None:
    """Make the data files of all instances; no two get the same documents."""

    def make(instance: int) -> int:
        one = wanted[instance]
        words = ["--kind", one.kind, "--instance", str(instance), "--of", str(len(wanted))]
        words += ["--folder", str(one.folder), "--size", str(one.size)]
        # A maker that outlived us would write into a folder that is being removed.
        command = [sys.executable, "-m", "agentzip.workloads.launcher", "--"]
        command += [sys.executable, "-m", "agentzip.workloads.material", *words]
        return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        codes = list(pool.map(make, range(len(wanted))))
    if any(codes):
        kinds = " and ".join(sorted({one.kind for one in wanted}))
        raise InternalError(f"the data of kind {kinds} could not be made")


def _command(name: str) -> list[str]:
    program = WORKLOADS[name].program if name in WORKLOADS else _PROGRAMS[name]
    if program.endswith(".js"):
        return ["node", str(Path(__file__).parent / program)]
    return [sys.executable, "-m", f"agentzip.workloads.{program}"]


def _environment() -> dict[str, str]:
    """
    Few variables, the same for all.

    One thread of arithmetic each: eight instances with a pool each would fight for the cores.
    """
    names = ("PATH", "HOME", "PYTHONPATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _await_end(tree: Sequence[processes.ProcessInfo]) -> None:
    """Children of an ended process are the init's to wait for; they must be gone all the same."""
    deadline = time.monotonic() + _END_SECONDS
    while any(processes.is_alive(found.pid, found.start_time) for found in tree):
        if time.monotonic() > deadline:
            raise InternalError("processes of a workload do not end")
        time.sleep(0.02)

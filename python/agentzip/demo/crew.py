"""
Starting agents, talking to them, ending them.

Each agent is a process with two pipes; a question goes in as a line, the answer comes back as one.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from agentzip.errors import InternalError, TargetGone
from agentzip.host import processes

__all__ = ["ROWS", "Agent", "crew", "for_all"]

ROWS = 140_000
"""Rows per agent: about 250 MB of resident memory, and a start of seconds."""

_END_SECONDS_MAX = 10.0
"""How long an agent may take to end before it is killed."""

T = TypeVar("T")


class Agent:
    """One running agent."""

    def __init__(self, seed: int, data: Path) -> None:
        # One thread of arithmetic each: eight agents with a pool each would fight for the cores.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self.seed = seed
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agentzip.demo.agent"),
                *("--seed", str(seed), "--csv", str(data)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.pid = self._process.pid
        self.start_time = processes.process(self.pid).start_time

    def wait_until_ready(self) -> float:
        """Wait for the end of the loading; returns how long it took in the agent."""
        return float(self._answer()["seconds"])

    def tool(self, question: int) -> tuple[object, float]:
        """
        One tool call.

        Returns:
            The answer, and how long it took as seen from here in seconds.
        """
        started = time.perf_counter()
        answer = self._ask(f"tool {question}")["answer"]
        return answer, time.perf_counter() - started

    def digest(self) -> str:
        """Digest over the agent's whole state, made by the agent itself."""
        return str(self._ask("digest")["digest"])

    def end(self) -> int:
        """
        Let the agent end, by force if it must be.

        Returns:
            Its exit code.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # It may have ended already; the exit code tells how.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        return self._process.returncode

    def _ask(self, question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(question + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise TargetGone(f"agent {self.seed} (process {self.pid}) has died") from error
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise TargetGone(
                f"agent {self.seed} (process {self.pid}) has died",
                "what it wrote to stderr says why",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def crew(count: int, folder: Path) -> Iterator[list[Agent]]:
    """
    Agents that have loaded their data and wait for the model; ended on the way out.

    Args:
        count: How many.
        folder: Where their data files are made.
    """
    seeds = list(range(1, count + 1))
    files = [folder / f"orders-{seed}.csv" for seed in seeds]
    _make_files(seeds, files)
    agents: list[Agent] = []
    try:
        for seed, file in zip(seeds, files, strict=True):
            agents.append(Agent(seed, file))
        for agent in agents:
            agent.wait_until_ready()
        yield agents
    finally:
        for agent in agents:
            agent.end()


def for_all(agents: Sequence[Agent], work: Callable[[Agent], T], at_once: int) -> list[T]:
    """Do the same for every agent, some at once; results in the order of the agents."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="crew") as pool:
        return list(pool.map(work, agents))


def _make_files(seeds: list[int], files: list[Path]) -> None:
    makers = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "agentzip.demo.orders"),
                *("--seed", str(seed), "--rows", str(ROWS), "--out", str(file)),
            ]
        )
        for seed, file in zip(seeds, files, strict=True)
    ]
    codes = [maker.wait() for maker in makers]
    if any(codes):
        raise InternalError("the demo could not make its data files")

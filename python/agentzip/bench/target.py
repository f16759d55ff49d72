"""
One process of targets/latency.c, driven over its pipes.
"""

import os
import select
import subprocess
import time
from array import array
from pathlib import Path

from agentzip.bench.build import ensure_built
from agentzip.children import Child
from agentzip.errors import InternalError

__all__ = ["ALL_CPUS", "ONE_CPU", "OTHER_CPU", "HeapTarget", "measure_stops", "microseconds"]

ALL_CPUS = os.sched_getaffinity(0)
"""Where the scheduler may put things."""

ONE_CPU = max(ALL_CPUS)
"""Where the toucher runs while its faults are timed."""

OTHER_CPU = min(ALL_CPUS)
"""Where a server runs that is far from the toucher; the same one if there is only one."""

_ANSWER_SECONDS = 60
"""The longest command, a sweep with everything out, takes a second; beyond this it hangs."""


class HeapTarget(Child):
    """A process with a heap of known pages; leaving the context ends it."""

    def __init__(self, mebibytes: int, folder: Path) -> None:
        program = ensure_built() / "latency"
        command, pipe = [str(program), str(mebibytes)], subprocess.PIPE
        super().__init__(subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0))
        self._pending = b""
        self._samples = folder / f"samples-{self.process.pid}"
        try:
            _, start, end = self._read_answer().split()
        except BaseException:
            self.stop()
            raise
        self.heap = (int(start, 16), int(end, 16))
        self.pages = mebibytes * 256

    def fill(self, generation: int) -> None:
        """Make every page anew; no copy of an earlier one is right any more."""
        self._ask(f"fill {generation}")

    def pin(self, cpus: set[int]) -> None:
        """Let it run on these processors only."""
        os.sched_setaffinity(self.pid, cpus)

    def touch(self, count: int, skip: int, seed: int) -> list[float]:
        """Read one word of random pages, one by one; the time of each.

        With the same seed and `skip` as many pages left out, none is touched twice.
        """
        self._ask(f"touch {count} {skip} {seed} {self._samples}")
        return microseconds(self._samples)

    def sweep(self) -> None:
        """Touch every page in order."""
        self._ask("sweep")

    def count_wrong(self) -> int:
        """How many pages do not hold what they must."""
        return int(self._ask("verify").split()[1])

    def drop(self, cpu: int) -> None:
        """Raw floor: everything out, another process answers from this processor."""
        self._ask(f"drop {cpu}")

    def restore(self) -> float:
        """End of the raw floor; the time per page of bringing the rest home."""
        _, nanoseconds, pages = self._ask("restore").split()
        return int(nanoseconds) / 1000 / max(int(pages), 1)

    def move(self, chunk_bytes: int) -> list[float]:
        """Raw UFFDIO_MOVE of the heap; the time of each chunk."""
        self._ask(f"move {chunk_bytes} {self._samples}")
        return microseconds(self._samples)

    def _ask(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        answer = self._read_answer()
        if answer.startswith("error"):
            raise InternalError(f"the benchmark's target said: {answer} (to {command!r})")
        return answer

    def _read_answer(self) -> str:
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        deadline = time.monotonic() + _ANSWER_SECONDS
        while b"\n" not in self._pending:
            ready, _, _ = select.select([output], [], [], deadline - time.monotonic())
            piece = os.read(output, 4096) if ready else b""
            if not piece:
                raise InternalError(f"the benchmark's target {self.pid} does not answer")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()


def measure_stops(pid: int, count: int, folder: Path) -> list[float]:
    """How long a bare stop of the main thread takes, without anything done in it."""
    samples = folder / f"stops-{pid}"
    command = [str(ensure_built() / "stopper"), str(pid), str(count), str(samples)]
    subprocess.run(command, check=True, timeout=_ANSWER_SECONDS)
    return microseconds(samples)


def microseconds(samples: Path) -> list[float]:
    """The samples in a file, which hold 32-bit nanoseconds."""
    values = array("I")
    values.frombytes(samples.read_bytes())
    return [value / 1000 for value in values]

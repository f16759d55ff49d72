"""
An ordinary Python program as a target: dicts, text, lists, arrays and sets, with a digest.

It speaks the line protocol of the C targets: verify, work, threads N, stop-threads, pool,
subprocess, exit.  `verify` computes the digest of all data anew; the check compares it with the one
from before, so that the expected value never lives in the memory that is paged out.
"""

import array
import hashlib
import multiprocessing
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

PARTS = 10


class Heap:
    """The data, in parts that threads and child processes can check independently."""

    def __init__(self, seed: int) -> None:
        self.parts = [self._part(seed * 100 + number) for number in range(PARTS)]
        self.threads: list[threading.Thread] = []
        self.stop = threading.Event()
        self.wrong: list[int] = []

    @staticmethod
    def _part(seed: int) -> dict[str, Any]:
        dice = random.Random(seed)  # noqa: S311 - content, not keys
        words = [f"word{dice.randrange(10**6)}" for _ in range(2000)]
        return {
            "records": [
                {"id": n, "name": dice.choice(words), "score": dice.random(), "tags": [n, n + 1]}
                for n in range(4000)
            ],
            "index": {f"{word}-{n}": n for n, word in enumerate(words)},
            "text": [" ".join(dice.choices(words, k=30)) for _ in range(600)],
            "numbers": array.array("d", [dice.random() for _ in range(40_000)]),
            "noise": dice.randbytes(300_000),
            "names": set(words),
        }

    def digest_of(self, number: int) -> str:
        """Digest of one part, reading every object in it."""
        part = self.parts[number]
        total = hashlib.sha256()
        total.update(repr(part["records"]).encode())
        total.update(repr(sorted(part["index"].items())).encode())
        total.update("\n".join(part["text"]).encode())
        total.update(part["numbers"].tobytes())
        total.update(part["noise"])
        total.update(repr(sorted(part["names"])).encode())
        return total.hexdigest()

    def digest(self) -> str:
        """Digest of everything."""
        joined = "".join(self.digest_of(number) for number in range(PARTS))
        return hashlib.sha256(joined.encode()).hexdigest()

    def work(self) -> str:
        """Change some of the data, as a tool call would."""
        for part in self.parts:
            for record in part["records"][::10]:
                record["score"] += 1.0
                record["tags"] = [*record["tags"][-1:], len(part["index"])]
            part["index"][f"new{len(part['index'])}"] = 1
            part["text"].append("added")
            part["numbers"][::100] = array.array("d", [1.5] * len(part["numbers"][::100]))
        return self.digest()

    def start_threads(self, count: int) -> str:
        """Busy threads that keep checking one part each."""
        self.stop.clear()
        expected = [self.digest_of(number) for number in range(PARTS)]
        self.threads = [
            threading.Thread(target=self._watch, args=(n % PARTS, expected[n % PARTS]))
            for n in range(count)
        ]
        for thread in self.threads:
            thread.start()
        return f"{count}"

    def _watch(self, number: int, expected: str) -> None:
        while not self.stop.is_set():
            if self.digest_of(number) != expected:
                self.wrong.append(number)
                return

    def stop_threads(self) -> str:
        """End the threads; raises if one of them saw wrong data."""
        self.stop.set()
        for thread in self.threads:
            thread.join()
        self.threads = []
        if self.wrong:
            raise AssertionError(f"wrong parts: {self.wrong}")
        return "stopped"

    def pool(self) -> str:
        """Let forked worker processes compute the digests of what they inherited."""
        with multiprocessing.get_context("fork").Pool(3) as workers:
            digests = workers.map(self.digest_of_inherited, range(PARTS))
        joined = "".join(digests)
        return hashlib.sha256(joined.encode()).hexdigest()

    @staticmethod
    def digest_of_inherited(number: int) -> str:
        """Runs in a worker: the heap is the one that it was forked with."""
        return HEAPS[0].digest_of(number)


HEAPS: list[Heap] = []


def main() -> None:
    """Build the heap, then answer commands until the input ends."""
    heap = Heap(int(sys.argv[1]))
    HEAPS.append(heap)
    commands: dict[str, Callable[..., str]] = {
        "verify": heap.digest,
        "work": heap.work,
        "threads": lambda count: heap.start_threads(int(count)),
        "stop-threads": heap.stop_threads,
        "pool": heap.pool,
        "subprocess": run_another,
    }
    answer(f"ready {os.getpid()}")
    for line in sys.stdin:
        name, *arguments = line.split()
        if name == "exit":
            break
        try:
            answer(f"ok {commands[name](*arguments)}")
        except Exception as error:  # noqa: BLE001 - told to the check, which judges it
            answer(f"bad {type(error).__name__}: {error}")


def run_another() -> str:
    """Start another program; returns what it printed."""
    command = [sys.executable, "-c", "print(6 * 7)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def answer(line: str) -> None:
    """Write one line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

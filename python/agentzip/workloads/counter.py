"""
The agent that never rests: between two turns it goes on counting the words of its documents.

What it counts once it counts again and again, and compares, so a page that came back wrong is found
even between turns.  Its digest does not depend on how far it came.

    python -m agentzip.workloads.counter FOLDER
"""

import random
import select
import sys
from collections import Counter
from pathlib import Path

from agentzip.workloads.json_agent import ToolAgent, words_of
from agentzip.workloads.serve import digest_of, say
from agentzip.workloads.toolbox import import_toolbox
from agentzip.workloads.turns import Checks, answer_turns

__all__ = ["WordCounter", "main"]

_CHUNKS_AT_ONCE = 40
"""Counted before it looks whether somebody asks: some milliseconds."""

_CHUNKS_A_TURN = 1_500
"""Some tenths of a second; never more than half of all, or every turn would find the same."""


class WordCounter(ToolAgent):
    """Its documents and what it has counted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.counts = [self._count(number) for number in range(len(self.chunks))]
        self.findings: list[str] = []
        self._next = 0
        self._between = Checks()

    def count_on(self) -> None:
        """The next few chunks, again."""
        for _ in range(_CHUNKS_AT_ONCE):
            self._next = (self._next + 1) % len(self.chunks)
            self._compare(self._next, self._between)

    def recall(self) -> str:
        """What it has found, and every count."""
        counted = (str(count).encode() for count in self.counts)
        return digest_of([*(text.encode() for text in self.findings), *counted])

    def work(self, number: int, choice: int) -> dict[str, object]:
        """Add up a part of its documents; every chunk is counted again."""
        checks, chance = Checks(), random.Random(choice)  # noqa: S311
        total: Counter[str] = Counter()
        first = chance.randrange(len(self.chunks))
        for step in range(min(_CHUNKS_A_TURN, len(self.chunks) // 2)):
            at = (first + step) % len(self.chunks)
            self._compare(at, checks)
            total.update(self.counts[at])
        often = total.most_common(10)
        self.findings.append(f"turn {number}: {often}")
        # What was found between turns is told once.
        between, self._between = self._between.wrong, Checks()
        return {"words": total.total(), "often": often[0][0], "wrong": checks.wrong + between}

    def digest(self) -> str:
        """Everything of the tool agent, counts and findings."""
        return digest_of([super().digest().encode(), self.recall().encode()])

    def _count(self, number: int) -> Counter[str]:
        return Counter(words_of(self.chunks[number]["text"]))

    def _compare(self, number: int, checks: Checks) -> None:
        checks.that("count", self._count(number) == self.counts[number])


def main(arguments: list[str] | None = None) -> None:
    """Load, say so, and count; answer whoever asks."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    import_toolbox()
    state = WordCounter(folder)
    say({"ready": True})
    while True:
        # Whoever asks waits for the answers before the next line, so none is in Python's buffer.
        if not select.select([sys.stdin], [], [], 0)[0]:
            state.count_on()
        elif line := sys.stdin.readline():
            answer_turns(state, line)
        else:
            return


if __name__ == "__main__":
    main()

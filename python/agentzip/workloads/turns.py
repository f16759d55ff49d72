"""
A whole turn of an agent: what the fan-out bench drives.

    turn N C     turn N, in which the model answered C; two lines come back:
                 {"recalled": "..."}   the state that every turn needs has been read: it is awake
                 {"answer": {...}}     the tool call is done and its results are checked
    digest       a digest over all that is held
    (the end of stdin is the end)

A turn is not undone: the agent grows as agents do, and its last digest tells whether a run in
which pages came and went ended where a run without ended.  All of it follows from the instance, N
and C, so two runs with one seed say the same, line by line.
"""

import sys
import time
from collections.abc import Iterator
from typing import Protocol

from agentzip.workloads.serve import say

__all__ = ["Checks", "TurnState", "answer_turns", "serve_turns"]


class TurnState(Protocol):
    """An agent that takes turns."""

    def recall(self) -> str:
        """Read the state that every turn needs; a digest over it."""

    def work(self, number: int, choice: int) -> dict[str, object]:
        """The tool call that the model asked for; `wrong` names the results that did not check."""

    def digest(self) -> str:
        """A digest over everything."""


class Checks:
    """What a turn verifies of its own results."""

    def __init__(self) -> None:
        self._wrong: list[str] = []

    def that(self, name: str, holds: bool) -> None:
        """Note a result that is not what it must be."""
        if not holds:
            self._wrong.append(name)

    @property
    def wrong(self) -> list[str]:
        """Names of the results that were not right."""
        return list(self._wrong)


def serve_turns(state: TurnState) -> None:
    """Answer until stdin ends; waits in a plain read."""
    while line := sys.stdin.readline():
        answer_turns(state, line)


def answer_turns(state: TurnState, line: str) -> None:
    """Answer one line, `turn N C` or `digest`."""
    words = line.split()
    started = time.perf_counter()
    for part in _answers(state, words):
        say({**part, "seconds": time.perf_counter() - started})


def _answers(state: TurnState, words: list[str]) -> Iterator[dict[str, object]]:
    if words[:1] == ["turn"] and len(words) == 3:
        yield {"recalled": state.recall()}
        yield {"answer": state.work(int(words[1]), int(words[2]))}
    elif words == ["digest"]:
        yield {"digest": state.digest()}
    else:
        yield {"error": f"no such command: {' '.join(words)}"}

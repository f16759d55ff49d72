"""
The instance's side of the conversation, for instances in Python.

    step N     one tool call; the same one a second time takes its changes back
    digest     a digest over all that is held
    (the end of stdin is the end)

That a step undoes itself lets a digest be compared across steps: two equal steps, one with its
pages out and one after, must leave every byte as it was.  Every answer is one JSON object on a
line of stdout.
"""

import hashlib
import json
import sys
import time
from collections.abc import Iterable
from typing import Protocol

__all__ = ["State", "answer", "digest_of", "say", "serve"]


class State(Protocol):
    """What an instance holds between two tool calls."""

    def step(self, number: int) -> dict[str, object]:
        """One tool call."""

    def digest(self) -> str:
        """A digest over everything."""


def serve(state: State) -> None:
    """Answer until stdin ends; waits in a plain read."""
    # readline and not iteration: iterating a file reads ahead into a buffer of its own.
    while line := sys.stdin.readline():
        answer(state, line)


def answer(state: State, line: str) -> None:
    """Answer one line."""
    words = line.split()
    started = time.perf_counter()
    if words[:1] == ["step"] and len(words) == 2:
        said: dict[str, object] = {"answer": state.step(int(words[1]))}
    elif words == ["digest"]:
        said = {"digest": state.digest()}
    else:
        said = {"error": f"no such command: {line.strip()}"}
    say({**said, "seconds": time.perf_counter() - started})


def say(answer: dict[str, object]) -> None:
    """One line to whoever started us."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def digest_of(parts: Iterable[bytes]) -> str:
    """A digest over some parts, one after the other."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(part)
        hasher.update(b"\x1f")
    return hasher.hexdigest()

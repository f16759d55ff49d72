"""
Start a process, wait until it is worth learning from, train, and check what came out.

A dictionary that does not pay, or that holds traces of this machine, is not given out.
The process and all below it are ended in every case.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from agentzip import dictionaries
from agentzip.errors import DictionaryRefused, InvalidSetting
from agentzip.host import processes
from agentzip.training.recipes import Recipe
from agentzip.training.traces import machine_words, traces

__all__ = ["Made", "Trainer", "make"]

_READY = b"ready"
_READY_SECONDS = 120.0
"""How long a recipe's program may take to get ready, on a slow and busy machine."""

_GAIN_MIN = 1.02
"""Least gain on pages it was not made from; below it the dictionary costs more than it saves."""

_USEFUL_BYTES_MIN = 4096
"""Less is what trainers return when they found nothing in common."""

_END_SECONDS = 5.0

_TRACES_SHOWN = 5


class Trainer(Protocol):
    """The part of an engine that trains; `agentzip.pager.Pager` has it."""

    def attach(self, pid: int, start_time: int | None = None) -> Any:
        """Start to manage a process."""

    def detach(self, pid: int) -> Any:
        """Give it back."""

    def train(self, pid: int, *, bytes_max: int, pages_max: int) -> Any:
        """Train a dictionary from the pages of a process and keep it."""

    def dictionary_bytes(self, dictionary_id: int) -> bytes:
        """The bytes of a kept dictionary."""

    def drop_dictionary(self, dictionary_id: int) -> None:
        """Keep it no longer."""


@dataclass(frozen=True, slots=True)
class Made:
    """A dictionary and its facts."""

    data: bytes
    facts: dictionaries.Facts


def make(
    trainer: Trainer,
    recipe: Recipe,
    *,
    bytes_max: int = dictionaries.BYTES_MAX,
    pages_max: int = 8000,
    after_seconds: float = 5.0,
    private: bool = False,
    words: Callable[[], set[str]] = machine_words,
) -> Made:
    """
    Make one dictionary.

    Args:
        trainer: The engine.
        recipe: What to start.
        bytes_max: Largest size.
        pages_max: Most pages to learn from.
        after_seconds: When a command that does not say `ready` is ready.
        private: Whether traces of this machine are allowed; the facts then say so.
        words: What counts as such traces.

    Raises:
        DictionaryRefused: it does not pay, or holds traces of this machine.
        InvalidSetting: the command cannot be started, or ends before it is ready.
    """
    with _started(recipe) as process:
        _wait_until_ready(process, recipe, after_seconds)
        target = processes.process(recipe.choose(process.pid))
        trainer.attach(target.pid, target.start_time)
        try:
            training = trainer.train(target.pid, bytes_max=bytes_max, pages_max=pages_max)
            data = trainer.dictionary_bytes(training.id)
            trainer.drop_dictionary(training.id)
        finally:
            trainer.detach(target.pid)
    if len(data) < _USEFUL_BYTES_MIN or training.gain < _GAIN_MIN:
        raise DictionaryRefused(
            f"dictionary does not pay: {len(data)} bytes, gain {training.gain:.3f}",
            "let the process do more of its work before, with a larger --after",
        )
    found = traces(data, words())
    if found and not private:
        # What came from the environment may be a secret: its beginning tells its owner enough.
        shown = ", ".join(_beginning(word) for word in found[:_TRACES_SHOWN])
        raise DictionaryRefused(
            f"dictionary holds traces of this machine: {shown}",
            "start the command where these do not appear, or keep the result for this machine "
            "with --private",
        )
    facts = dictionaries.Facts(
        name=recipe.name,
        recipe=recipe.text,
        source=recipe.source,
        date=datetime.now(UTC).date().isoformat(),
        bytes=len(data),
        sha256=dictionaries.digest(data),
        pages_sampled=training.pages_sampled,
        gain=round(training.gain, 4),
        private=bool(found),
    )
    return Made(data, facts)


def _beginning(word: str) -> str:
    return repr(word) if len(word) <= 12 else f"{word[:8]!r}... ({len(word)} characters)"


@contextlib.contextmanager
def _started(recipe: Recipe) -> Iterator["subprocess.Popen[bytes]"]:
    source = contextlib.nullcontext() if recipe.program is None else recipe.program.open("rb")
    with source as program:
        try:
            process = subprocess.Popen(
                recipe.command(),
                env=recipe.environment,
                cwd="/" if recipe.says_ready else None,
                stdin=subprocess.DEVNULL if program is None else program,
                stdout=subprocess.PIPE if recipe.says_ready else subprocess.DEVNULL,
                stderr=subprocess.STDOUT if recipe.says_ready else None,
            )
        except OSError as error:
            raise InvalidSetting(
                f"command cannot be started: {error}", "give the path of a program that may run"
            ) from error
    try:
        yield process
    finally:
        _end(process)


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", recipe: Recipe, after_seconds: float
) -> None:
    if recipe.says_ready:
        _read_until_ready(process, time.monotonic() + _READY_SECONDS)
        return
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(after_seconds)
        raise InvalidSetting(
            f"command ended before it was learned from: exit code {code}",
            "give a command that runs on, or a smaller --after",
        )


def _read_until_ready(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    assert process.stdout is not None
    output = b""
    while _READY not in output:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise InvalidSetting(f"program of the recipe is not ready in {_READY_SECONDS:.0f} s")
        block = os.read(process.stdout.fileno(), 4096)
        if not block:
            told = output.decode(errors="replace").strip()[-200:]
            raise InvalidSetting(f"program of the recipe ended before it was ready: {told!r}")
        # The last bytes of a long log are enough to find the word across two reads.
        output = (output + block)[-4096:]


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the process and everything below it; a pid that is reused meanwhile is not hit."""
    with contextlib.ExitStack() as held:
        family = [
            handle
            for below in processes.descendants(process.pid)
            if (handle := _handle(below)) is not None
        ]
        for handle in family:
            held.callback(os.close, handle)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        process.kill()
        process.wait()
        for handle in family:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        deadline = time.monotonic() + _END_SECONDS
        for handle in family:
            select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
    if process.stdout is not None:
        process.stdout.close()


def _handle(below: processes.ProcessInfo) -> int | None:
    """A pidfd of the very process that was seen; None if it has ended."""
    try:
        handle = os.pidfd_open(below.pid)
    except ProcessLookupError:
        return None
    if processes.is_alive(below.pid, below.start_time):
        return handle
    os.close(handle)
    return None

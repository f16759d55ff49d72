"""
Say from inside a sandbox where it is in its life: `with here.waiting("model", expect=8): ...`

One file without any import but the standard library's, for Python 3.8 and later, so that it can be
copied into an image alone.  It speaks to the socket that the host has mounted into the sandbox
(docs/hints.md), named by $AGENTZIP_SANDBOX_SOCKET or /run/agentzip/sandbox.sock; where there is
none, every word is dropped.  What is said is advice: no failure of the host ever ends the program
that gives it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # Not there in the older Pythons of some sandboxes.
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

__all__ = ["WAITS", "Advice", "Waiting", "finishing", "hint", "status", "waiting"]

WAITS = ("model", "tool", "user")
"""What a sandbox can wait for."""

_DEFAULT_SOCKET = "/run/agentzip/sandbox.sock"

_ANSWER_SECONDS = 10.0
"""How long one word may take: longer than any working set needs to come home."""

_ANSWER_BYTES_MAX = 64 * 1024
"""What is read of an answer; ours have a few hundred bytes."""

_SLOW_SECONDS = 2.0
_SILENT_SECONDS = 30.0
"""A failure that took longer than the first is followed by silence for the second: a host that
hangs must not hold up the agent at each of its waits."""

_TOLD_MAX = 100
"""Different failures that are logged, each once; then there is nothing new to learn."""

T = TypeVar("T")

_log = logging.getLogger(__name__)

_open_waits: ContextVar[Mapping[object, Waiting]] = ContextVar("agentzip_open_waits")
"""The innermost wait of each sandbox in this thread or task."""


def hint(phase: str, expect: float | None = None) -> bool:
    """
    Say in which phase this sandbox is.

    Args:
        phase: starting, running, waiting_model, waiting_tool, waiting_user, resuming, finishing
            or done.
        expect: Seconds that the phase is expected to last.

    Returns:
        Whether the host heard it.
    """
    return bool(_advice.attempt(lambda: _ask("PUT", "/v1/phase", phase, expect)))


def waiting(kind: str, expect: float | None = None) -> Waiting:
    """
    Wait for `model`, `tool` or `user` in a `with` or an `async with` block.

    At its end the sandbox is running again, or in the wait around this one, and its memory is
    home.

    Args:
        kind: What is waited for.
        expect: Seconds that the wait is expected to last.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in WAITS:
        raise ValueError(f"kind of wait is not known: {kind!r}: use one of {', '.join(WAITS)}")
    return Waiting(hint, "here", f"waiting_{kind}", expect)


def finishing() -> bool:
    """Say that the work is done but for the result; returns whether the host heard it."""
    return hint("finishing")


def status() -> dict[str, Any] | None:
    """The own phase as the host sees it, with `expected_rest_s`; None without a host."""
    return _advice.attempt(lambda: _ask("GET", "/v1/self"))


class Advice:
    """
    Words to somebody who may be away: failures are logged once and never raised.

    Args:
        whom: Who is spoken to, for the log.
    """

    def __init__(self, whom: str) -> None:
        self._whom = whom
        self._told: set[str] = set()
        self._silent_until = 0.0

    def attempt(self, work: Callable[[], T]) -> T | None:
        """What `work` returns; None if it failed, or if it is not worth trying just now."""
        began = time.monotonic()
        if began < self._silent_until:
            return None
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - advice must not end a program, whatever it is
            text = f"{type(error).__name__}: {error}"
            if text not in self._told and len(self._told) < _TOLD_MAX:
                self._told.add(text)
                _log.warning("%s did not hear a hint; going on without: %s", self._whom, text)
            if time.monotonic() - began > _SLOW_SECONDS:
                self._silent_until = time.monotonic() + _SILENT_SECONDS
            return None


class Waiting:
    """
    A wait, for `with` and for `async with`; its end restores the phase around it.

    What is around it is found for each thread and task on its own.  Several that wait in one
    sandbox at the same time do not know of each other: the last word counts, and the end of any
    wait brings the memory home.

    Args:
        say: Tells a phase and how long it is expected to last, in seconds.
        key: Which sandbox, so that waits of different ones do not nest.
        phase: Phase of the wait.
        expect_s: How long it is expected to last.
    """

    def __init__(
        self,
        say: Callable[[str, float | None], object],
        key: object,
        phase: str,
        expect_s: float | None,
    ) -> None:
        self._say = say
        self._key = key
        self._phase = phase
        self._expect_s = expect_s
        self._began = 0.0
        self._around: Waiting | None = None

    def __enter__(self) -> Self:
        self._open()
        try:
            self._say(self._phase, self._expect_s)
        except BaseException:
            self._shut()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        phase, rest_s = self._shut()
        try:
            self._say(phase, rest_s)
        except Exception:
            # What went wrong in the block matters more than that nobody heard of its end.
            if error is None:
                raise

    async def __aenter__(self) -> Self:
        import asyncio

        self._open()
        saying = asyncio.ensure_future(_aside(lambda: self._say(self._phase, self._expect_s)))
        try:
            await asyncio.shield(saying)
        except asyncio.CancelledError as error:
            # The word is on its way, but the block will not run: take it back, in order.
            await asyncio.wait({saying})
            await self.__aexit__(type(error), error, None)
            raise
        except BaseException:
            self._shut()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        phase, rest_s = self._shut()
        try:
            await _aside(lambda: self._say(phase, rest_s))
        except Exception:
            if error is None:
                raise

    def _open(self) -> None:
        waits = _open_waits.get({})
        self._around = waits.get(self._key)
        self._began = time.monotonic()
        _open_waits.set({**waits, self._key: self})

    def _shut(self) -> tuple[str, float | None]:
        """Close this wait; returns the phase around it and how long that will last."""
        waits = {key: wait for key, wait in _open_waits.get({}).items() if key != self._key}
        around = self._around
        if around is None:
            _open_waits.set(waits)
            return "running", None
        _open_waits.set({**waits, self._key: around})
        return around._phase, around._rest_s()  # noqa: SLF001 - of the same class

    def _rest_s(self) -> float | None:
        """How much longer it is expected to last; None if nobody knows, or it is overdue."""
        if self._expect_s is None:
            return None
        rest_s = self._began + self._expect_s - time.monotonic()
        return rest_s if rest_s > 0 else None


async def _aside(work: Callable[[], T]) -> T:
    """
    Do blocking work while the event loop goes on.

    In a thread of its own: the loop's common ones may all be busy with what the program waits
    for, and the end of a wait must not stand in that queue.
    """
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    thread = ThreadPoolExecutor(1, thread_name_prefix="agentzip-hint")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    finally:
        thread.shutdown(wait=False)


def _ask(
    method: str, path: str, phase: str | None = None, expect: float | None = None
) -> dict[str, Any] | None:
    """
    One request on a connection of its own; None where there is no socket.

    Raises:
        OSError: the host did not answer, or refused.
        ValueError: the answer cannot be read.
    """
    where = os.environ.get("AGENTZIP_SANDBOX_SOCKET") or _DEFAULT_SOCKET
    body = b"" if phase is None else json.dumps({"phase": phase, "expect": expect}).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    answer = b""
    deadline = time.monotonic() + _ANSWER_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # Not `settimeout`: while others crowd in front of the host's socket it would make the
        # kernel refuse us at once, and this makes it let us wait in the queue.
        patience = struct.pack("ll", int(_ANSWER_SECONDS), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        try:
            connection.connect(where)
        except FileNotFoundError:
            return None
        # Who refuses us hangs up at once; why is still there to be read.
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(head.encode() + body)
        while len(answer) <= _ANSWER_BYTES_MAX:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            block = connection.recv(4096)
            if not block:
                break
            answer += block
    first, _, text = answer.partition(b"\r\n\r\n")
    found = json.loads(text)
    if int(first.split(maxsplit=2)[1]) >= 400:
        raise OSError(f"{found.get('detail')} ({where})")
    return dict(found)


_advice = Advice("the host")

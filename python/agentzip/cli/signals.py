"""
Signals on their way through `agentzip run`: to the command, not to us.

Ctrl-C in a terminal reaches every process of the foreground group by itself; passing it on would
make it arrive twice.  So keyboard signals are passed on only while we are not in the foreground,
and all others always.  The command is addressed by a pidfd: its pid may be another's by now.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from types import FrameType
from typing import Any

__all__ = ["Relay"]

_KEYBOARD = {signal.SIGINT, signal.SIGQUIT}

_PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)


class Relay:
    """
    Catches signals from its making until `close`.

    Made before the command is started, so that a signal in between is kept and not lost.
    Only the main thread of a process can make one.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._kept: list[int] = []
        self._former: dict[int, Any] = {}
        for number in _PASSED_ON:
            # Ignored at our start (nohup, a background job) means: ignored by the command too.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._receive)

    def pass_on_to(self, child: "subprocess.Popen[bytes]") -> None:
        """Name the command; what was kept so far is delivered now."""
        self._child = child
        self._pidfd = os.pidfd_open(child.pid)
        while self._kept:
            self._send(self._kept.pop(0))

    def wait(self, seconds: float | None) -> bool:
        """
        Wait for the end of the command.

        Args:
            seconds: How long at most; None waits for ever.

        Returns:
            Whether it has ended; its exit code is then in `returncode`.
        """
        assert self._child is not None
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        ended = bool(poller.poll(None if seconds is None else seconds * 1000))
        if ended:
            self._child.wait()
        return ended

    def close(self) -> None:
        """Let signals reach us again."""
        for number, handler in self._former.items():
            signal.signal(number, handler)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._pidfd < 0:
            self._kept.append(number)
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        if number in _KEYBOARD and _in_foreground():
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)


def _in_foreground() -> bool:
    """Whether our process group has the terminal, and the keyboard's signals with it."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):
        return False

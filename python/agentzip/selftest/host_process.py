"""
One life of a daemon that runs in a process of its own, so that it can be killed.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentzip.children import Child
from agentzip.selftest.conditions import describe_threads
from agentzip.selftest.registry import CheckFailed

__all__ = ["HostProcess"]

_COMMAND_SECONDS = 30.0
_BACKGROUND_SECONDS = 150.0
"""For work of the lowest priority, which a busy host hardly lets run."""
_BACKGROUND = ("train", "recode")
_READY_SECONDS = 15.0


class HostProcess(Child):
    """An `engine_host` process; every method that needs it alive tells if it is dead."""

    def __init__(
        self, run_dir: Path, crash_at: str | None = None, chunk_pages: int | None = None
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `stop`
        super().__init__(
            subprocess.Popen(
                [
                    *(sys.executable, "-X", "faulthandler", "-m", "agentzip.selftest.engine_host"),
                    *("--run-dir", str(run_dir)),
                    *(("--crash-at", crash_at) if crash_at else ()),
                    *(("--chunk-pages", str(chunk_pages)) if chunk_pages else ()),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._buffer = b""
        self.adopted: set[int] = set()

    def ready(self) -> bool:
        """Wait until it has taken over; False if it died at its crash point before."""
        answer = self._read(_READY_SECONDS, "start")
        if answer is None:
            return False
        self.adopted = set(answer["ok"]["adopted"])
        return True

    def begin(self, name: str, **arguments: Any) -> None:
        """Begin one command whose answer nobody waits for: it is meant to die over it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": name, **arguments}).encode() + b"\n")
        self.process.stdin.flush()

    def do(self, name: str, **arguments: Any) -> dict[str, Any]:
        """
        Carry out one command.

        Raises:
            CheckFailed: it failed.
            BrokenPipeError: the daemon is dead.
        """
        self.begin(name, **arguments)
        seconds = _BACKGROUND_SECONDS if name in _BACKGROUND else _COMMAND_SECONDS
        answer = self._read(seconds, name)
        if answer is None:
            raise BrokenPipeError(name)
        if "error" in answer:
            raise CheckFailed(f"{name} {arguments}: {answer['error']}: {answer['message']}")
        done: dict[str, Any] = answer["ok"]
        return done

    def _read(self, seconds: float, after: str) -> dict[str, Any] | None:
        """One answer; None when the process ended by SIGKILL, which is what we came for."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            dead = not self.alive()
            part = self.process.stdout.read() or b""
            self._buffer += part
            if dead and b"\n" not in self._buffer:
                return None
            if time.monotonic() > deadline:
                threads = describe_threads(self.process.pid)
                raise CheckFailed(f"the daemon does not answer {after!r}; threads: {threads}")
            if not part:
                time.sleep(0.002)
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def alive(self) -> bool:
        """
        Whether it still runs.

        Raises:
            CheckFailed: it ended by anything but SIGKILL.
        """
        code = self.process.poll()
        if code is not None and code != -signal.SIGKILL:
            self._errors.seek(0)
            log = self._errors.read()[-2000:].decode(errors="replace")
            raise CheckFailed(f"the daemon ended with {code}: {log}")
        return code is None

    def dies_within(self, seconds: float) -> bool:
        """Whether it dies by itself, at its crash point."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return not self.alive()

    def stop(self) -> None:
        """Kill it if it lives, and free what belongs to it."""
        super().stop()
        self._errors.close()

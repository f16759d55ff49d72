"""
Headless Chromium, driven over its DevTools pipe.

Descriptors 3 and 4, JSON texts that end in a zero byte: no network port, no WebSocket client.
"""

import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agentzip.errors import InternalError

__all__ = ["Browser", "chromium"]

_ANSWER_SECONDS = 60.0
"""A page that loads on a busy host takes some; beyond this the browser hangs."""


def chromium() -> str | None:
    """The program, if this host has one."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A running Chromium and the pipe to it."""

    def __init__(self, program: str, profile: Path) -> None:
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        # A shell puts the two ends where Chromium looks for them; ours are out of its way.
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agentzip.workloads.launcher", "--"),
                *("bash", "-c", f'exec "$@" 3<&{command_read} 4>&{answer_write}', "bash"),
                *(program, "--headless", "--no-sandbox", "--disable-gpu"),
                *("--remote-debugging-pipe", f"--user-data-dir={profile}"),
                *("--no-first-run", "--disable-extensions", "--disable-breakpad"),
                "--window-size=1024,768",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(command_read, answer_write),
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer = b""
        self._numbers = itertools.count(1)

    def call(self, method: str, tab: str = "", **parameters: Any) -> dict[str, Any]:
        """
        Call one DevTools method and wait for its answer; events are skipped.

        Raises:
            InternalError: the browser ended, does not answer, or refused.
        """
        number = next(self._numbers)
        request: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if tab:
            request["sessionId"] = tab
        os.write(self._write, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            answer = json.loads(self._message(deadline, method))
            if answer.get("id") == number:
                if "error" in answer:
                    raise InternalError(f"the browser refused {method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open_tab(self, url: str, loaded: str) -> str:
        """Open a tab and wait until an expression is true in it; returns how to address it."""
        target = self.call("Target.createTarget", url=url)["targetId"]
        tab = str(self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not self.evaluate(tab, loaded):
            if time.monotonic() > deadline:
                raise InternalError(f"the page does not load: {url}")
            time.sleep(0.05)
        return tab

    def evaluate(self, tab: str, expression: str) -> Any:
        """Value of a JavaScript expression in a tab."""
        answer = self.call("Runtime.evaluate", tab, expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise InternalError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def _message(self, deadline: float, method: str) -> bytes:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise InternalError(f"the browser does not answer {method}")
            block = os.read(self._read, 2**20)
            if not block:
                raise InternalError(f"the browser ended instead of answering {method}")
            self._buffer += block
        message, self._buffer = self._buffer.split(b"\0", 1)
        return message

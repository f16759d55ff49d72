"""
A headless browser with all its processes paged out: the page, a screenshot and a new tab work.

Chromium is driven over its DevTools pipe (descriptors 3 and 4, JSON texts that end in a zero
byte), so that no network port and no WebSocket client is needed.
"""

import base64
import itertools
import json
import os
import select
import shutil
import struct
import subprocess
import time
import zlib
from contextlib import suppress
from typing import Any

import pytest

from agentzip.children import Stoppable
from agentzip.errors import (
    AgentZipError,
    NoSuchProcess,
    NotAttached,
    TargetBusy,
    TargetGone,
)
from agentzip.host import processes
from agentzip.selftest.conditions import assert_free, assert_no_trace, snapshot, wait_until
from agentzip.selftest.registry import Check, CheckFailed, CheckSkipped, check, find
from agentzip.selftest.runner import run_one
from agentzip.selftest.stage import Stage

_ANSWER_SECONDS = 40.0
_ROUNDS = 2
_WIDTH, _HEIGHT = 640, 480

# Objects, strings and typed arrays; `check` visits all of them and is the same every time.
_PAGE = """data:text/html,<title>agentzip</title><body style="background:%2300ff00"><script>
const items = [];
for (let i = 0; i < 60000; i++) items.push({id: i, name: 'item ' + i * 7, list: [i, i + 1]});
const numbers = new Float64Array(200000).map((_, i) => i / 3);
for (let i = 0; i < 800; i++) {
  const line = document.createElement('p');
  line.textContent = 'line ' + i;
  document.body.append(line);
}
function check() {
  let sum = 0;
  for (const item of items) sum = (sum * 31 + item.name.length + item.list[1]) % 1000000007;
  for (const number of numbers) sum = (sum + Math.floor(number)) % 1000000007;
  for (const line of document.querySelectorAll('p')) sum += line.textContent.length;
  return sum;
}
</script>"""


class Browser(Stoppable):
    """A running Chromium and the pipe to it."""

    def __init__(self, program: str, profile: str) -> None:
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        # A shell puts the two ends where Chromium looks for them; ours are out of its way.
        self.process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{command_read} 4>&{answer_write}', "bash"),
                *(program, "--headless", "--no-sandbox", "--disable-gpu"),
                *("--remote-debugging-pipe", f"--user-data-dir={profile}"),
                *("--no-first-run", "--disable-extensions", "--disable-breakpad"),
                f"--window-size={_WIDTH},{_HEIGHT}",
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

    def stop(self) -> None:
        """End the browser with all its processes."""
        tree = [found.pid for found in processes.descendants(self.process.pid)]
        for pid in [self.process.pid, *tree]:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Call one DevTools method and wait for its answer; events are skipped."""
        number = next(self._numbers)
        request: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            request["sessionId"] = session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            answer = json.loads(self._message(deadline, method))
            if answer.get("id") == number:
                if "error" in answer:
                    raise CheckFailed(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _message(self, deadline: float, method: str) -> bytes:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise CheckFailed(f"the browser does not answer {method}")
            block = os.read(self._read, 2**20)
            if not block:
                raise CheckFailed(f"the browser ended instead of answering {method}")
            self._buffer += block
        message, self._buffer = self._buffer.split(b"\0", 1)
        return message

    def open_tab(self, url: str) -> str:
        """Open a tab; returns the session to speak with it."""
        target = self.call("Target.createTarget", url=url)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return str(session)

    def evaluate(self, session: str, expression: str) -> Any:
        """Value of a JavaScript expression in a tab."""
        answer = self.call("Runtime.evaluate", session, expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise CheckFailed(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def tree(self) -> list[int]:
        """Pids of all its processes."""
        living = [f for f in processes.descendants(self.process.pid) if f.state not in "ZX"]
        return [self.process.pid, *(found.pid for found in living)]


def _first_pixel(png: bytes) -> tuple[int, int, tuple[int, ...]]:
    """Width, height and the colour in the upper left corner of an 8-bit RGB or RGBA image."""
    if png[:8] != b"\x89PNG\r\n\x1a\n":
        raise CheckFailed(f"not a PNG: {png[:16]!r}")
    width, height, _, color = struct.unpack(">IIBB", png[16:26])
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        if kind == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    # The first pixel of the first row has no neighbours: every row filter leaves it as it is.
    raw = zlib.decompress(data)
    return width, height, tuple(raw[1 : 4 if color == 2 else 5])[:3]


def _patiently(call: Any, *arguments: Any) -> Any:
    """Call the engine again while no thread can be borrowed: browsers have many, all waiting."""
    for _ in range(30):
        with suppress(TargetBusy):
            return call(*arguments)
        time.sleep(0.02)
    return call(*arguments)


def _lives(pid: int) -> bool:
    try:
        return processes.process(pid).state not in "ZX"
    except NoSuchProcess:
        return False


class _Paged:
    """The processes of the browser that are attached."""

    def __init__(self, stage: Stage, browser: Browser) -> None:
        self.engine = stage.engine
        self.before = {}
        self.refused: list[str] = []
        for pid in browser.tree():
            try:
                before = snapshot(pid)
                _patiently(self.engine.attach, pid)
                self.before[pid] = before
            except (AgentZipError, FileNotFoundError) as refusal:
                self.refused.append(f"{pid}: {refusal}")

    def page_out(self) -> int:
        """Move everything of every process out; returns the number of pages."""
        moved = 0
        for pid in list(self.before):
            try:
                moved += _patiently(self.engine.page_out, pid).pages_moved
            except (TargetGone, NotAttached):
                # Browsers end spare processes as they like.
                if _lives(pid):
                    raise
                del self.before[pid]
        return moved

    def leave(self) -> None:
        """Detach everything; a process that lives must be as it was found."""
        for pid, before in self.before.items():
            try:
                report = _patiently(self.engine.detach, pid)
                if not report.complete:
                    raise CheckFailed(f"detach is not complete: {report}")
                assert_free(pid)
                assert_no_trace(before, snapshot(pid))
            except (TargetGone, NotAttached, FileNotFoundError, ProcessLookupError):
                if _lives(pid):
                    raise
        # Children that were forked meanwhile (the new tab's renderer) have no pid for us.
        for space in self.engine.spaces():
            with suppress(AgentZipError):
                self.engine.page_in_space(space.id)


@check("browser/chromium", 150)
def chromium(stage: Stage) -> None:
    """Page, screenshot and new tab are right with all processes of the browser paged out."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise CheckSkipped("no chromium on this host")
    with Browser(program, str(stage.folder / "profile")) as browser:
        tab = browser.open_tab(_PAGE)
        # A new tab shows an empty page first, which is complete as well.
        loaded = "typeof check === 'function' && document.readyState === 'complete'"
        if not wait_until(lambda: bool(browser.evaluate(tab, loaded)), 30):
            raise CheckFailed("the page does not load")
        expected = browser.evaluate(tab, "check()")
        paged = _Paged(stage, browser)
        if len(paged.before) < 4:
            raise CheckFailed(f"too few processes: {paged.refused}")
        for number in range(_ROUNDS):
            moved = paged.page_out()
            if number == 0 and moved < 5000:
                raise CheckFailed(f"only {moved} pages left")
            _page_is_right(browser, tab, expected)
            paged.page_out()
            _screenshot_is_right(browser, tab)
            paged.page_out()
            second = browser.open_tab("data:text/html,<p>second")
            if browser.evaluate(second, "6 * 7") != 42:
                raise CheckFailed("the new tab does not work")
            stage.note(f"{moved} pages of {len(paged.before)} processes")
        stage.note(f"refused: {paged.refused}")
        paged.leave()
        _page_is_right(browser, tab, expected)
        _screenshot_is_right(browser, tab)


def _page_is_right(browser: Browser, tab: str, expected: object) -> None:
    found = browser.evaluate(tab, "check()")
    if found != expected:
        raise CheckFailed(f"the page's own check: {found} instead of {expected}")


def _screenshot_is_right(browser: Browser, tab: str) -> None:
    png = base64.b64decode(browser.call("Page.captureScreenshot", tab)["data"])
    width, height, color = _first_pixel(png)
    if color != (0, 255, 0) or width < _WIDTH // 2 or height < _HEIGHT // 4:
        raise CheckFailed(f"the screenshot is {width} x {height} and begins with {color}")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("found", [pytest.param(find("browser/chromium"), id="chromium")])
def test_browser(found: Check) -> None:
    """The browser works as before and is left as it was found."""
    result = run_one(found)

    if result.skipped_reason:
        pytest.skip(result.skipped_reason)
    assert result.passed, result.detail
    print(result.detail)

"""A browser trims itself over its DevTools port, when asked."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.errors import InvalidSetting, TrimRefused
from agentzip.host import processes
from agentzip.sandbox.chromium import trim_browser
from agentzip.sandbox.memory import resident_bytes
from agentzip.sandbox.trim_socket import serve_trim
from agentzip.trimming import request_trim

pytest.importorskip("websockets", reason="the extra `chromium` is not installed")

_PAGE = """data:text/html,<title>busy</title><script>
let held = [];
for (let i = 0; i < 600000; i++) held.push({i, text: 'item ' + i});
held = null;
document.title = 'done';
</script>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """Pid and DevTools address of a headless browser with a page that has made garbage."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on this host")
    profile = tmp_path_factory.mktemp("profile")
    process = subprocess.Popen(
        [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--remote-debugging-port=0", f"--user-data-dir={profile}", _PAGE),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process.pid, f"http://127.0.0.1:{_port(profile / 'DevToolsActivePort')}"
    finally:
        for below in processes.descendants(process.pid):
            if processes.is_alive(below.pid, below.start_time):
                os.kill(below.pid, signal.SIGKILL)
        process.kill()
        process.wait()


def _port(file: Path) -> int:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        # The browser makes the file before it writes to it.
        if file.exists() and "\n" in file.read_text():
            return int(file.read_text().split()[0])
        time.sleep(0.05)
    raise AssertionError("the browser does not open its port")


@pytest.mark.timeout(100)
def test_a_browser_gives_memory_back(browser: tuple[int, str]) -> None:
    """The process of the page is smaller afterwards, and the page is still there."""
    pid, address = browser
    _wait_for_title(address, "done")
    before = _page_resident(pid)
    report = trim_browser(address)

    assert report.heaps >= 1
    assert before - _page_resident(pid) > 10 * 2**20
    assert report.resident_bytes > 0
    _wait_for_title(address, "done")


def _wait_for_title(address: str, title: str) -> None:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{address}/json/list", timeout=20) as answer:  # noqa: S310
            if title in [page["title"] for page in json.load(answer)]:
                return
        time.sleep(0.05)
    raise AssertionError(f"no page has the title: {title}")


def _page_resident(pid: int) -> int:
    """Resident memory of the largest process that runs a page."""
    return max(
        resident_bytes(below.pid)
        for below in processes.descendants(pid)
        if "--type=renderer" in below.command
    )


@pytest.mark.timeout(100)
def test_the_driver_of_a_browser_trims_both(browser: tuple[int, str], tmp_path: Path) -> None:
    """One request to the driving process reaches the browser as well."""
    path = tmp_path / "trim.sock"
    server = serve_trim(path, devtools=browser[1])
    assert server is not None
    environment = {"AGENTZIP_TRIM_SOCKET": str(path), "PATH": os.environ["PATH"]}
    asked = subprocess.Popen(["sleep", "100"], env=environment)
    try:
        while "AGENTZIP_TRIM_SOCKET" not in processes.environment(asked.pid):
            pass
        answer = request_trim(asked.pid, timeout_seconds=30)
    finally:
        asked.kill()
        asked.wait()
        server.close()

    assert answer is not None
    assert os.getpid() == answer.answered_by
    assert answer.figures["browser_heaps"] >= 1
    assert "browser_freed_bytes" in json.dumps(answer.figures)


def test_a_port_without_a_browser_is_told(tmp_path: Path) -> None:
    """Nobody there, or no address at all: a sentence."""
    with pytest.raises(TrimRefused, match=r"does not answer at http://127\.0\.0\.1:1"):
        trim_browser("http://127.0.0.1:1", 2)
    for address in ("127.0.0.1:9222", f"file://{tmp_path}", ""):
        with pytest.raises(InvalidSetting, match="no address of a DevTools port"):
            trim_browser(address)

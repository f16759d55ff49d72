"""The screen of `agentzip top`, driven by keys, over a daemon that a test makes fast or slow."""

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from agentzip.cli import main, top
from agentzip.cli.feed import Feed, Reading, faults_per_second
from agentzip.cli.screen import ORDERS, TopScreen
from agentzip.errors import DaemonUnreachable, InvalidSetting, NoSuchSandbox
from agentzip.sandboxes import Decision, SandboxStatus
from agentzip.testing import FakeEngine
from sandbox_values import MIB, a_sandbox

_PATIENCE_SECONDS = 20.0
"""How long a test waits for what must come; a busy machine takes its time."""


@dataclass
class FakeDaemon:
    """A daemon and a connection to it in one."""

    sandboxes: list[SandboxStatus] = field(default_factory=list)
    orders: list[tuple[str, str]] = field(default_factory=list)
    answering: threading.Event = field(default_factory=threading.Event)
    refusal: Exception | None = None
    readings: int = 0

    def read(self) -> Reading:
        """One reading, if the daemon answers."""
        assert self.answering.wait(_PATIENCE_SECONDS)
        if self.refusal is not None:
            raise self.refusal
        self.readings += 1
        return Reading(
            sandboxes=list(self.sandboxes),
            engine=FakeEngine().stats(),
            memory_total=1000 * MIB,
            memory_available=400 * MIB,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None: ...

    def sandbox_page_out(self, sandbox: str) -> int:
        """Note the order; refuse for a sandbox that is gone."""
        self.orders.append(("out", sandbox))
        if sandbox == "gone":
            raise NoSuchSandbox(f"no such sandbox: {sandbox}")
        return 100

    def sandbox_page_in(self, sandbox: str) -> int:
        """Note the order."""
        self.orders.append(("in", sandbox))
        return 50

    def pin(self, sandbox: str, pinned: bool) -> None:
        """Do it."""
        self.orders.append((f"pin {pinned}", sandbox))
        self.sandboxes = [
            replace(one, pinned=pinned) if one.name == sandbox else one for one in self.sandboxes
        ]

    def explain(self, sandbox: str) -> list[Decision]:
        """One decision."""
        self.orders.append(("explain", sandbox))
        return [
            Decision(
                age_s=3,
                action="page_out",
                pid=9,
                pages=7,
                gain=5e6,
                cost=1e6,
                reason="12 s [wait]",
            )
        ]


def a_daemon(*sandboxes: SandboxStatus) -> FakeDaemon:
    """One that answers."""
    daemon = FakeDaemon(list(sandboxes))
    daemon.answering.set()
    return daemon


def play(daemon: FakeDaemon, script: Callable[[TopScreen, Pilot[None]], Awaitable[None]]) -> None:
    """Run the screen without a terminal and let a script press keys."""

    async def run() -> None:
        app = TopScreen(Feed(daemon.read, lambda: daemon, 0.05))
        async with app.run_test(size=(140, 30)) as pilot:
            await script(app, pilot)

    asyncio.run(run())


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it never came to hold"
        await pilot.pause(0.02)


def names(app: TopScreen) -> list[str]:
    """Sandboxes in the order of their rows."""
    table = app.query_one(DataTable)
    return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]


def cells(app: TopScreen, row: int) -> list[str]:
    """Cells of one row, without padding."""
    return [str(cell).strip() for cell in app.query_one(DataTable).get_row_at(row)]


def head(app: TopScreen) -> str:
    """Text of the header."""
    return str(app.query_one("#head", Static).content)


def says(app: TopScreen, text: str) -> bool:
    """Whether the header has some text."""
    return text in head(app)


def test_sandboxes_are_shown_with_their_figures_the_largest_first() -> None:
    """Rows by what a sandbox would take at home; the header adds up."""
    daemon = a_daemon(
        a_sandbox("small", rss_bytes=MIB, bytes_logical=0, bytes_pool=0, prefetch_hit_rate=None),
        a_sandbox("large"),
    )

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["large", "small"])
        assert [
            *("large", "waiting_model 12s", "20.0 MiB", "80.0 MiB", "16.0 MiB", "5.00x"),
        ] == cells(app, 0)[:6]
        assert ["4", "90%", ""] == cells(app, 0)[7:]
        assert ["-", "4", "-", ""] == [cells(app, 1)[5], *cells(app, 1)[7:]]
        assert "host 600.0 MiB used of 1000.0 MiB" in head(app)
        assert "2 sandboxes, 21.0 MiB resident, 80.0 MiB out" in head(app)
        assert "gain 80.0 MiB" in head(app)

    play(daemon, script)


def test_a_name_with_markup_and_escapes_is_a_name() -> None:
    """It neither ends the screen nor reaches the terminal."""
    daemon = a_daemon(a_sandbox("[/] [red]a\x1b[2J"))

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == [r"[/] [red]a\x1b[2J"])
        await pilot.press("o")
        await until(pilot, lambda: daemon.orders == [("out", "[/] [red]a\x1b[2J")])

    play(daemon, script)


def test_keys_order_what_the_cursor_is_on() -> None:
    """Page out, page in and pin go to the chosen sandbox; a second p takes the pin away."""
    daemon = a_daemon(a_sandbox("a"), a_sandbox("b"))

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["a", "b"])
        await pilot.press("down", "o")
        await until(pilot, lambda: daemon.orders == [("out", "b")])
        await pilot.press("i")
        await until(pilot, lambda: daemon.orders[1:] == [("in", "b")])
        await pilot.press("p")
        await until(pilot, lambda: cells(app, 1)[-1] == "pinned")
        await pilot.press("p")
        await until(pilot, lambda: cells(app, 1)[-1] == "")
        assert [("pin True", "b"), ("pin False", "b")] == daemon.orders[2:]

    play(daemon, script)


def test_a_refused_order_is_said_and_the_screen_goes_on() -> None:
    """What the daemon refuses is a notice."""
    daemon = a_daemon(a_sandbox("gone"))

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["gone"])
        await pilot.press("o")
        await until(pilot, lambda: len(list(app._notifications)) == 1)
        (said,) = app._notifications
        assert ("no such sandbox: gone", "error") == (said.message, said.severity)
        readings = daemon.readings
        await until(pilot, lambda: daemon.readings > readings)

    play(daemon, script)


def test_decisions_are_explained_over_the_table_and_left_again() -> None:
    """The key e shows numbers and reason, brackets and all; escape goes back."""
    daemon = a_daemon(a_sandbox("a"))

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["a"])
        await pilot.press("e")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        text = str(app.screen.query_one(Static).content)
        assert "3s ago: page_out, pid 9, 7 pages; gain 5e+06, cost 1e+06" in text
        assert "12 s [wait]" in text
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)

    play(daemon, script)


def test_the_order_of_rows_can_be_chosen_and_the_cursor_stays_on_its_sandbox() -> None:
    """By phase of a life, by ratio, by faults, and back to memory."""
    daemon = a_daemon(
        a_sandbox("a", phase="done", faults=5, rss_bytes=50 * MIB),
        a_sandbox("b", bytes_pool=8 * MIB, faults=1),
        a_sandbox("c", phase="running", faults=9, rss_bytes=10 * MIB),
    )
    seen = []

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["a", "b", "c"])
        for order in (*ORDERS[1:], ORDERS[0]):
            await pilot.press("s")
            await until(pilot, partial(says, app, f"sorted by {order}"))
            seen.append("".join(names(app)))
            assert "a" == cells(app, app.query_one(DataTable).cursor_row)[0]

    play(daemon, script)

    assert ["cba", "bac", "cab", "abc"] == seen


def test_a_daemon_that_does_not_answer_holds_nobody_up() -> None:
    """Keys work, the figures say how old they are, and the screen can be left."""
    daemon = a_daemon(a_sandbox("a"))

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["a"])
        daemon.answering.clear()
        await until(pilot, lambda: "the daemon is slow" in head(app))
        await pilot.press("s")
        assert "sorted by phase" in head(app)
        await pilot.press("q")

    play(daemon, script)
    assert not daemon.answering.is_set()
    daemon.answering.set()


def test_a_daemon_that_went_away_leaves_its_last_figures() -> None:
    """The error stands in the header; figures come back with the daemon."""
    daemon = a_daemon(a_sandbox("a"))

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["a"])
        daemon.refusal = DaemonUnreachable("no daemon answers [here]")
        await until(pilot, lambda: "no daemon answers [here]" in head(app))
        assert ["a"] == names(app)
        daemon.refusal = None
        await until(pilot, lambda: "no daemon" not in head(app))

    play(daemon, script)


def test_sandboxes_come_and_go() -> None:
    """Rows follow the readings; with none the keys do nothing."""
    daemon = a_daemon(a_sandbox("a"))

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["a"])
        daemon.sandboxes = []
        await until(pilot, lambda: names(app) == [])
        await pilot.press("o", "i", "p", "e")
        daemon.sandboxes = [a_sandbox("b"), a_sandbox("c", left_alone="ratio 1.2")]
        await until(pilot, lambda: names(app) == ["b", "c"])
        assert "left alone: ratio 1.2" == cells(app, 1)[-1]

    play(daemon, script)
    assert [] == daemon.orders


def test_without_colour_the_screen_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR changes no cell."""
    monkeypatch.setenv("NO_COLOR", "1")
    daemon = a_daemon(a_sandbox("a", pinned=True))

    async def script(app: TopScreen, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: names(app) == ["a"])
        assert "pinned" == cells(app, 0)[-1]
        assert app.no_color

    play(daemon, script)


def test_faults_per_second_come_from_two_readings() -> None:
    """A sandbox that is new has no rate, one that began anew has none below zero."""
    daemon = a_daemon(a_sandbox("a", faults=10), a_sandbox("again", faults=90))
    before = replace(daemon.read(), at=100.0)
    daemon.sandboxes = [
        a_sandbox("a", faults=40),
        a_sandbox("again", faults=5),
        a_sandbox("new", faults=7),
    ]
    now = replace(daemon.read(), at=110.0)

    assert {"a": 3.0, "again": 0.0} == faults_per_second(before, now)
    assert {} == faults_per_second(None, now)


def test_without_a_terminal_there_is_json_and_no_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--json prints one reading; the screen refuses a pipe with what to do instead."""
    daemon = a_daemon(a_sandbox("small", rss_bytes=1), a_sandbox("large"))
    monkeypatch.setattr(top, "read", lambda _run_dir: daemon.read())

    assert 0 == main(["--run-dir", str(tmp_path), "top", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert ["large", "small"] == [one["name"] for one in shown["sandboxes"]]
    assert 160 * MIB == shown["gain_bytes"]
    assert InvalidSetting.exit_code == main(["--run-dir", str(tmp_path), "top"])
    assert "agentzip top --json" in capsys.readouterr().err


def test_without_textual_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host without the package is told what to install."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delitem(sys.modules, "agentzip.cli.screen", raising=False)
    monkeypatch.setitem(sys.modules, "textual.app", None)

    assert InvalidSetting.exit_code == main(["--run-dir", str(tmp_path), "top"])
    assert "pip install 'agentzip[top]'" in capsys.readouterr().err


def test_the_pace_is_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a storm of questions nor a screen that never changes."""
    for every in ("10ms", "2h", "2"):
        assert 2 == main(["--run-dir", str(tmp_path), "top", "--every", every])
        assert "--every" in capsys.readouterr().err

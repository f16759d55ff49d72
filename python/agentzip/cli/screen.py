"""
The screen of `agentzip top`: a header, a table of sandboxes, and keys.

Shows what a `Feed` hands over and sends its orders; knows no socket and never waits for one.
Nothing is said by colour alone, so NO_COLOR and a monochrome terminal lose nothing.
"""

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from agentzip.cli.feed import Feed, FleetClient, Reading, faults_per_second
from agentzip.cli.output import plain
from agentzip.cli.rows import age, mark, share, times
from agentzip.errors import AgentZipError
from agentzip.sandboxes import PHASES, Decision, SandboxStatus
from agentzip.totals import add_up, by_memory, pages_ratio
from agentzip.units import format_bytes

__all__ = ["COLUMNS", "ORDERS", "TopScreen"]

COLUMNS = (
    *("SANDBOX", "PHASE", "RESIDENT", "OUT", "STORED", "RATIO", "FAULTS/S", "WAKES", "PREFETCH"),
    "MARK",
)

ORDERS = ("memory", "phase", "ratio", "faults")
"""What rows can be sorted by, in the order in which the key `s` goes through them."""

_LATE_SECONDS = 3.0
"""So long after a reading was due the header says how old the figures are."""


class Arrived(Message):
    """A reading came."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self.reading = reading


class Failed(Message):
    """The daemon could not be read."""

    def __init__(self, error: AgentZipError) -> None:
        super().__init__()
        self.error = error


class Done(Message):
    """An order was carried out, or refused."""

    def __init__(self, said: str, failed: bool) -> None:
        super().__init__()
        self.said = said
        self.failed = failed


class Explained(Message):
    """The last decisions for a sandbox came."""

    def __init__(self, sandbox: str, decisions: list[Decision]) -> None:
        super().__init__()
        self.sandbox = sandbox
        self.decisions = decisions


class _Explanation(ModalScreen[None]):
    """The last decisions for one sandbox, over the table."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,e,q", "dismiss", "back"),
    ]
    CSS = """
    _Explanation { align: center middle; }
    #decisions { width: 90%; height: 80%; border: solid $foreground; padding: 0 1; }
    """

    def __init__(self, sandbox: str, decisions: list[Decision]) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._decisions = decisions

    def compose(self) -> ComposeResult:
        """One paragraph a decision, newest first."""
        lines = [
            f"{age(one.age_s)} ago: {one.action}, pid {one.pid}, {one.pages} pages; "
            f"gain {one.gain:.3g}, cost {one.cost:.3g}\n    {one.reason}"
            for one in self._decisions
        ]
        text = "\n".join([f"Last decisions for {self._sandbox}\n", *(lines or ["none yet"])])
        with VerticalScroll(id="decisions"):
            yield Static(text, markup=False)


class TopScreen(App[None]):
    """
    The whole screen.

    Args:
        feed: Where readings come from and orders go.
    """

    TITLE = "agentzip top"
    ENABLE_COMMAND_PALETTE = False
    CSS = "#head { height: auto; } DataTable { height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "page_out", "page out"),
        Binding("i", "page_in", "page in"),
        Binding("p", "pin", "pin"),
        Binding("e", "explain", "explain"),
        Binding("s", "sort", "sort"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self._head = Static(id="head", markup=False)
        self._table = DataTable[Text](cursor_type="row", zebra_stripes=False)
        self._feed = feed
        self._reading: Reading | None = None
        self._error = ""
        self._rates: dict[str, float] = {}
        self._rows: list[SandboxStatus] = []
        self._order = ORDERS[0]

    def compose(self) -> ComposeResult:
        """Header, table, keys."""
        yield self._head
        yield self._table
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self._table.add_columns(*COLUMNS)
        self._show()
        # The age of the last reading goes on while the daemon says nothing.
        self.set_interval(1.0, self._show_head)
        # Posting a message is the one thing that other threads may do with a screen.
        self._feed.start(
            lambda reading: self._post(Arrived(reading)), lambda error: self._post(Failed(error))
        )

    def on_unmount(self) -> None:
        """Read no more."""
        self._feed.close()

    def _post(self, message: Message) -> None:
        self.post_message(message)

    def on_arrived(self, message: Arrived) -> None:
        """Show a reading."""
        self._rates = faults_per_second(self._reading, message.reading)
        self._reading, self._error = message.reading, ""
        self._show()

    def on_failed(self, message: Failed) -> None:
        """Keep the last figures and say that they are old."""
        self._error = str(message.error)
        self._show_head()

    def on_done(self, message: Done) -> None:
        """Say what came of an order."""
        self.notify(
            message.said, severity="error" if message.failed else "information", markup=False
        )

    def on_explained(self, message: Explained) -> None:
        """Show the decisions."""
        self.push_screen(_Explanation(message.sandbox, message.decisions))

    def action_page_out(self) -> None:
        """Page the sandbox under the cursor out."""
        self._on_chosen(lambda client, name: f"{name}: {client.sandbox_page_out(name)} pages out")

    def action_page_in(self) -> None:
        """Bring the sandbox under the cursor home."""
        self._on_chosen(lambda client, name: f"{name}: {client.sandbox_page_in(name)} pages home")

    def action_pin(self) -> None:
        """Pin the sandbox under the cursor, or give it back to the planner."""
        chosen = self._chosen()
        pinned = chosen is not None and not chosen.pinned

        def pin(client: FleetClient, name: str) -> str:
            client.pin(name, pinned)
            return f"{name} is {'pinned' if pinned else 'no longer pinned'}"

        self._on_chosen(pin)

    def action_explain(self) -> None:
        """Show the last decisions for the sandbox under the cursor."""
        chosen = self._chosen()
        if chosen is None:
            return
        name = chosen.name

        def explain(client: FleetClient) -> str:
            self._post(Explained(name, client.explain(name)))
            return ""

        self._feed.order(explain, self._say)

    def action_sort(self) -> None:
        """Sort by the next thing."""
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self._show()

    def _on_chosen(self, work: Callable[[FleetClient, str], str]) -> None:
        chosen = self._chosen()
        if chosen is not None:
            self._feed.order(lambda client: work(client, chosen.name), self._say)

    def _say(self, said: str, failed: bool) -> None:
        if said:
            self._post(Done(said, failed))

    def _chosen(self) -> SandboxStatus | None:
        row = self._table.cursor_row
        return self._rows[row] if 0 <= row < len(self._rows) else None

    def _show(self) -> None:
        """Header and rows anew; the cursor stays on its sandbox."""
        self._show_head()
        if self._reading is None or not self._table.is_attached:
            return
        chosen, table = self._chosen(), self._table
        rows = self._sorted(self._reading.sandboxes)
        shown = [list(map(plain, self._row(one))) for one in rows]
        if len(rows) != table.row_count:
            table.clear()
            for cells in shown:
                table.add_row(*cells)
        else:
            # In place, so that nothing flickers and the view does not jump.
            for number, cells in enumerate(shown):
                for column, cell in enumerate(cells):
                    place = Coordinate(number, column)
                    if table.get_cell_at(place) != cell:
                        table.update_cell_at(place, cell, update_width=True)
        self._rows = rows
        names = [one.name for one in rows]
        if chosen is not None and chosen.name in names:
            table.move_cursor(row=names.index(chosen.name))

    def _sorted(self, sandboxes: list[SandboxStatus]) -> list[SandboxStatus]:
        """By the chosen order, and by memory among equals."""
        rows = by_memory(sandboxes)
        if self._order == "phase":
            rows.sort(key=lambda one: PHASES.index(one.phase) if one.phase in PHASES else 99)
        elif self._order == "ratio":
            rows.sort(key=lambda one: -(pages_ratio(one) or 0.0))
        elif self._order == "faults":
            rows.sort(key=lambda one: (-self._rates.get(one.name, 0.0), -one.faults))
        return rows

    def _row(self, one: SandboxStatus) -> list[str]:
        rate = self._rates.get(one.name)
        return [
            one.name,
            f"{one.phase} {age(one.phase_age_s)}",
            f"{format_bytes(one.rss_bytes):>10}",
            f"{format_bytes(one.bytes_logical):>10}",
            f"{format_bytes(one.bytes_pool):>10}",
            f"{times(pages_ratio(one)):>7}",
            f"{'-' if rate is None else f'{rate:.1f}':>8}",
            f"{one.wakes:>5}",
            f"{share(one.prefetch_hit_rate):>8}",
            mark(one),
        ]

    def _show_head(self) -> None:
        reading = self._reading
        # Messages may still come while the screen is being taken down.
        if not self._head.is_attached:
            return
        if reading is None:
            self._head.update(self._error or "waiting for the daemon")
            return
        engine, totals = reading.engine, add_up(reading.sandboxes)
        used = reading.memory_total - reading.memory_available
        host = f"host {format_bytes(used)} used of {format_bytes(reading.memory_total)}"
        pool = f"pool {format_bytes(engine.pool_bytes)} of {format_bytes(engine.pool_bytes_max)}"
        home, out = format_bytes(totals.resident_bytes), format_bytes(totals.orig_mem)
        lines = [
            f"{host}   {pool}   gain {format_bytes(reading.gain_bytes)}",
            f"{totals.sandboxes} sandboxes, {home} resident, {out} out   sorted by {self._order}",
        ]
        late = time.monotonic() - reading.at
        if self._error:
            lines.append(f"no answer, figures are {age(late)} old: {self._error}")
        elif late > self._feed.every_s + _LATE_SECONDS:
            lines.append(f"the daemon is slow: figures are {age(late)} old")
        self._head.update("\n".join(lines))

"""
What is printed, and where: data to stdout, everything else to stderr.

Colours, tables and progress bars come only where a terminal is; a pipe gets plain text.  Names and
command lines of sandboxes are in much of it: no text can do more to a terminal than be read there.
"""

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from agentzip.daemon import RepeatFilter
from agentzip.errors import AgentZipError
from agentzip.host.kernel_text import printable

__all__ = [
    "clear_screen",
    "plain",
    "print_error",
    "print_json",
    "print_note",
    "print_table",
    "print_text",
    "set_up_logging",
    "with_progress",
]

T = TypeVar("T")

_ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)

_POLL_SECONDS = 0.2
"""How often a progress bar looks at how far the work is."""

_PIPE_COLUMNS = 240
"""Width of tables that are not printed on a terminal."""

_LOG_RECORDS_MAX = 1000
"""Log records that may wait for a slow reader; further ones are dropped, nobody is held up."""

_STDERR = 2
"""The descriptor, whatever `sys.stderr` is by now."""


def print_json(value: object) -> None:
    """Print one JSON value on one line of stdout."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Print lines of data to stdout."""
    sys.stdout.write(_readable(text) + "\n")
    sys.stdout.flush()


def clear_screen() -> None:
    """Begin at the top of a terminal; a pipe is left alone."""
    Console().clear()


def print_table(columns: list[str], rows: list[list[str]], right: set[str] | None = None) -> None:
    """
    Print a table to stdout.

    Args:
        columns: Headings.
        rows: One list of texts a row.
        right: Headings of the columns that hold numbers.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column in (right or set())
        table.add_column(
            column, justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(plain, row))
    console = Console(markup=False, highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    # A pipe has no width: give the rows the room they need instead of folding at 80 columns.
    wide = Console(markup=False, highlight=False, width=_PIPE_COLUMNS)
    with wide.capture() as captured:
        wide.print(table)
    print_text("\n".join(line.rstrip() for line in captured.get().splitlines()))


def plain(text: str) -> Text:
    """What one cell of a table shows: the text itself, whatever markup or escapes are in it."""
    return Text(printable(text))


def _readable(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def print_note(text: str) -> None:
    """Print a line for whoever watches to stderr."""
    sys.stderr.write(_readable(text) + "\n")


def print_error(error: AgentZipError, as_json: bool) -> None:
    """Print an error to stderr, in words or as a JSON object."""
    if as_json:
        answer = {
            "error": {
                "type": type(error).__name__,
                "message": str(error),
                "hint": error.hint,
                "exit_code": error.exit_code,
            }
        }
        sys.stderr.write(json.dumps(answer) + "\n")
        return
    hint = f"\nhint: {error.hint}\n" if error.hint else ""
    sys.stderr.write(_readable(f"error: {error}\n{hint}"))


def with_progress(label: str, total: int, measure: Callable[[], int], work: Callable[[], T]) -> T:
    """
    Do one long piece of work and show on a terminal how far it is.

    Args:
        label: What is being done.
        total: Value of `measure` at the end.
        measure: How far the work is; asked from another thread than the work's.
        work: The work; it runs in this thread, so that Ctrl-C reaches it.
    """
    if not sys.stderr.isatty() or total <= 0:
        return work()
    done = threading.Event()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=total)

        def follow() -> None:
            while not done.wait(_POLL_SECONDS):
                # The daemon or the target may just have gone: the work itself will say so.
                with contextlib.suppress(AgentZipError):
                    bar.update(task, completed=min(measure(), total))

        follower = threading.Thread(target=follow, name="progress", daemon=True)
        follower.start()
        try:
            return work()
        finally:
            done.set()
            follower.join(timeout=1)


class _DroppingQueueHandler(logging.handlers.QueueHandler):
    """Hands records to the writing thread, or drops them when it cannot follow."""

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue the record if there is room."""
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


class _LineFormatter(logging.Formatter):
    """One line for each message, whoever chose a part of its words, and those of its traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name for it
        """The line of a record."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: _ExceptionInfo) -> str:  # noqa: N802 - logging's name for it
        """The lines of a traceback."""
        return _readable(super().formatException(ei))


class _DescriptorHandler(logging.Handler):
    """
    Writes to stderr's descriptor itself, with no lock and no buffer, for one thread.

    A write that nobody reads does not return, and the interpreter's end waits for whoever holds
    the lock of a handler or of `sys.stderr` meanwhile.
    """

    def createLock(self) -> None:  # noqa: N802 - logging's name for it
        """None: only the writing thread comes here."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; where it cannot be written there is nobody to tell."""
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(_STDERR, line) :]


def set_up_logging(level: int) -> Callable[[], None]:
    """
    Log to stderr, from a thread of its own.

    Whoever reads our stderr may itself be a target with its pages out: a daemon that waited for
    that reader would wait for itself.

    Returns:
        A function that ends it, and writes out what is queued, waiting for a slow reader only
        briefly.
    """
    records: queue.Queue[logging.LogRecord] = queue.Queue(_LOG_RECORDS_MAX)
    writer = _DescriptorHandler()
    writer.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    listener = logging.handlers.QueueListener(records, writer)
    listener.start()
    handler = _DroppingQueueHandler(records)
    # This one puts message and traceback together; the writer only adds when and where.
    handler.setFormatter(_LineFormatter("%(message)s"))
    handler.addFilter(RepeatFilter())
    root = logging.getLogger("agentzip")
    former = root.level, root.propagate
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False

    def flush() -> None:
        root.removeHandler(handler)
        root.setLevel(former[0])
        root.propagate = former[1]
        stopper = threading.Thread(target=listener.stop, name="log-flush", daemon=True)
        stopper.start()
        stopper.join(timeout=1)

    return flush

"""
A document as Markdown; pictures are files beside it.
"""

import re

from agentzip.bench.report.blocks import (
    Block,
    Document,
    Heading,
    Listing,
    Plot,
    Points,
    Table,
    Text,
)

__all__ = ["PLOTS", "to_markdown"]

PLOTS = "plots"
"""Folder of the pictures, beside the file."""


def to_markdown(document: Document) -> str:
    """The whole file."""
    parts = [f"# {_plain(document.title)}", *(_block(block) for block in document.blocks)]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Text(text):
            return _plain(text)
        case Points(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Listing(lines):
            # A fence longer than any in the text cannot be closed by it.
            longest = max((len(run) for run in re.findall("`+", "\n".join(lines))), default=0)
            fence = "`" * max(3, longest + 1)
            return "\n".join((f"{fence}text", *lines, fence))
        case Table():
            return _table(block)
        case Plot(name, title, _):
            return f"![{_plain(title)}]({PLOTS}/{name}.svg)"


def _table(table: Table) -> str:
    left = {0, *table.words}
    rulers = tuple(":--" if number in left else "--:" for number in range(len(table.headings)))
    rows = [tuple(_plain(cell) for cell in row) for row in (table.headings, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rulers, *rows[1:])]
    notes = [f"\n{_plain(note)}" for note in table.notes]
    return "\n".join([f"**{_plain(table.title)}**", "", *lines, *notes])


def _plain(text: str) -> str:
    """One line in which nothing is markup."""
    return re.sub(r"([\\`*<\[\]|])", r"\\\1", " ".join(text.split()))

"""
What a document is made of: headings, sentences, tables, pictures, commands.

Texts are plain: whoever renders a block escapes it, so an error message or the name of a processor
can stand anywhere.
"""

from dataclasses import dataclass

__all__ = ["Block", "Document", "Heading", "Listing", "Plot", "Points", "Table", "Text"]


@dataclass(frozen=True, slots=True)
class Heading:
    """Of a section; level 1 is the document's own title."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Points:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Lines to be read as they are typed."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown; the first column says what the row is."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    words: tuple[int, ...] = ()
    """Columns that hold words and no figures, beside the first."""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.headings) for row in self.rows), self.title


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture; `name` is that of its file, without the ending."""

    name: str
    title: str
    svg: str


Block = Heading | Text | Points | Listing | Table | Plot


@dataclass(frozen=True, slots=True)
class Document:
    """Everything in its order."""

    title: str
    blocks: tuple[Block, ...]

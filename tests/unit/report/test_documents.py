"""A document in its two forms: everything is in it, and nothing in it is markup by accident."""

import base64
import re

import pytest

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
from agentzip.bench.report.claims import LABEL
from agentzip.bench.report.html import to_html
from agentzip.bench.report.markdown import to_markdown

_NASTY = 'a <b> & "c" | `d` [e](there) *f*'

_BLOCKS: tuple[Block, ...] = (
    Heading(_NASTY),
    Text(_NASTY),
    Points((_NASTY, "second")),
    Listing(("agentzip bench", "```", _NASTY)),
    Table("t", ("what", f"{LABEL}: ratio", "why"), ((_NASTY, "4.2", "so"),), ("n",), words=(2,)),
    Plot("memory", "over time", "<svg><text>ink</text></svg>"),
)


@pytest.fixture
def document() -> Document:
    """One block of each kind, with texts that want to be markup."""
    return Document(_NASTY, _BLOCKS)


def test_html_shows_texts_as_they_are(document: Document) -> None:
    """A text that looks like a tag is no tag; claims can be told from figures."""
    text = to_html(document)

    assert "<b>" not in text
    # In the title, its heading, and one in each block that has words of its own but the picture.
    assert 7 == text.count("a &lt;b&gt; &amp; &quot;c&quot;")
    assert '<td class="claim">4.2</td>' in text
    assert '<td class="words">so</td>' in text


def test_html_is_whole_without_a_network(document: Document) -> None:
    """Pictures are inside, and the only addresses are data."""
    text = to_html(document)

    sources = re.findall(r'(?:src|href|url)\s*=\s*"([^"]*)"', text)
    assert ["data:image/svg+xml;base64"] == [source.partition(",")[0] for source in sources]
    assert b"<svg><text>ink</text></svg>" == base64.b64decode(sources[0].partition(",")[2])
    assert "default-src 'none'" in text


def test_markdown_shows_texts_as_they_are(document: Document) -> None:
    """A bar does not end a cell, brackets make no link, a fence is not closed by what it holds."""
    text = to_markdown(document)
    outside, listing, rest = text.split("````")

    assert "[e](" not in outside.replace("\\[e\\](", "")
    assert "\n```\n" in listing
    row = next(line for line in rest.splitlines() if "4.2" in line)
    assert ["4.2", "so"] == [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[2:4]]
    assert "| :-- | --: | :-- |" in rest
    assert "![over time](plots/memory.svg)" in rest


def test_rows_have_a_cell_for_each_heading() -> None:
    """A table that has grown a column in one place only is noticed when it is made."""
    with pytest.raises(AssertionError, match="short"):
        Table("short", ("a", "b"), (("1",),))

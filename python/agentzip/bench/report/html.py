"""
A document as one HTML file that needs nothing else.

Pictures are in it as data, and a policy in its head forbids the browser to fetch anything.
"""

import base64
from html import escape

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

__all__ = ["to_html"]

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: .5em 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .5em 0; }
th, td { padding: .2em .7em; border-bottom: 1px solid #ccc; text-align: right; }
td { white-space: nowrap; }
th:first-child, td:first-child, .words { text-align: left; white-space: normal; }
th { vertical-align: bottom; font-weight: 600; }
.claim { color: #666; font-style: italic; background: #f4f4f4; }
.note { color: #444; font-size: 90%; margin: .2em 0; }
pre { background: #f4f4f4; padding: .7em; overflow-x: auto; }
div.wide { overflow-x: auto; }
img { max-width: 100%; background: #fff; }
"""


def to_html(document: Document) -> str:
    """The whole file."""
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{escape(document.title)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        f"<h1>{escape(document.title)}</h1>",
        *(_block(block) for block in document.blocks),
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Text(text):
            return f"<p>{escape(text)}</p>"
        case Points(items):
            return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
        case Listing(lines):
            return f"<pre>{escape(chr(10).join(lines))}</pre>"
        case Table():
            return _table(block)
        case Plot(_, title, svg):
            data = base64.b64encode(svg.encode()).decode()
            name = escape(title)
            return (
                f'<figure><img alt="{name}" src="data:image/svg+xml;base64,{data}">'
                f"<figcaption>{name}</figcaption></figure>"
            )


def _table(table: Table) -> str:
    kinds = [
        ' class="claim"'
        if heading.startswith(LABEL)
        else ' class="words"'
        if number in table.words
        else ""
        for number, heading in enumerate(table.headings)
    ]
    heads = "".join(
        f"<th{kind}>{escape(heading)}</th>"
        for heading, kind in zip(table.headings, kinds, strict=True)
    )
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in table.rows
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in table.notes)
    return (
        f'<div class="wide"><table><caption>{escape(table.title)}</caption>\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>{notes}"
    )

"""
Real documents as pages of the web: what an agent with a browser tool is handed.

Source text is shown as code hosts show it, an element around every token; manuals and notes as
articles; what is HTML already stays as it is.
"""

import html
import re
from pathlib import PurePath

__all__ = ["web_page"]

_CODE = {".py", ".pm"}
_PARAGRAPHS_OF_A_SECTION = 8


def web_page(name: str, text: str, neighbours: list[str]) -> str:
    """
    A page with a head, a menu and the document.

    Args:
        name: File name of the document.
        text: The document.
        neighbours: Other pages, for the menu.
    """
    suffix = PurePath(name).suffix
    if suffix == ".html":
        # Parsers of HTML warn of a declaration that makes it look like other XML.
        return re.sub(r"\A\s*<\?xml.*?\?>", "", text, flags=re.DOTALL)
    title = html.escape(name)
    menu = "".join(f'<li><a href="/{one}">{html.escape(one)}</a></li>' for one in neighbours)
    body = _code(name, text) if suffix in _CODE else _article(text)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>nav li{{display:inline}} p{{max-width:60em}}</style></head><body>"
        f'<nav><ul>{menu}</ul></nav><main id="content"><h1>{title}</h1>{body}</main></body></html>'
    )


def _code(name: str, text: str) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_for_filename

    shown: str = highlight(
        text, get_lexer_for_filename(name), HtmlFormatter(linenos="inline", lineanchors="L")
    )
    return shown


def _article(text: str) -> str:
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    pieces = []
    for number, paragraph in enumerate(paragraphs):
        if number % _PARAGRAPHS_OF_A_SECTION == 0:
            heading = html.escape(paragraph.splitlines()[0][:60])
            pieces.append(f'<h2 id="s{number}"><a href="#s{number}">{heading}</a></h2>')
        pieces.append(f"<p>{html.escape(paragraph)}</p>")
    return "\n".join(pieces)

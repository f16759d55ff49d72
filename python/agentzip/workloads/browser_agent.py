"""
A browser agent between two calls: Chromium with some tabs, and the Python program that drives it.

The sandbox is the whole tree: this process, the browser, its renderers and services.

    python -m agentzip.workloads.browser_agent FOLDER
"""

import base64
import sys
from pathlib import Path

from agentzip.errors import Unsupported
from agentzip.workloads.devtools import Browser, chromium
from agentzip.workloads.serve import digest_of, say, serve

__all__ = ["BrowserAgent", "main"]

_LOADED = "typeof digest === 'function' && document.readyState === 'complete'"
"""A new tab shows an empty page first, which is complete as well."""


class BrowserAgent:
    """The browser, its tabs, and what the agent took from them."""

    def __init__(self, folder: Path) -> None:
        program = chromium()
        if program is None:
            raise Unsupported("no chromium on this host", "install chromium")
        self.browser = Browser(program, folder / "profile")
        pages = sorted(folder.glob("page-*.html"))
        self.tabs = [self.browser.open_tab(page.as_uri(), _LOADED) for page in pages]
        self.texts = [
            str(self.browser.evaluate(tab, "document.body.innerText")) for tab in self.tabs
        ]
        self.images = [
            base64.b64decode(self.browser.call("Page.captureScreenshot", tab)["data"])
            for tab in self.tabs
        ]

    def step(self, number: int) -> dict[str, object]:
        """One tool call in one of the tabs."""
        tab = self.tabs[number % len(self.tabs)]
        return {"changed": self.browser.evaluate(tab, f"step({number})")}

    def digest(self) -> str:
        """What every page says of itself, and what was taken from them."""
        pages = [str(self.browser.evaluate(tab, "digest()")).encode() for tab in self.tabs]
        return digest_of([*pages, *(text.encode() for text in self.texts), *self.images])


def main(arguments: list[str] | None = None) -> None:
    """Open the pages, say so, and wait."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    state = BrowserAgent(folder)
    say({"ready": True})
    serve(state)


if __name__ == "__main__":
    main()

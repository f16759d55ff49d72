"""
Workload C: a browser agent over many turns: reads pages, changes them, takes pictures.

See turns.py for the lines and browser_agent.py for the browser.

    python -m agentzip.workloads.surfer FOLDER
"""

import base64
import random
import sys
from pathlib import Path

from agentzip.workloads.browser_agent import BrowserAgent
from agentzip.workloads.serve import digest_of, say
from agentzip.workloads.turns import Checks, serve_turns

__all__ = ["Surfer", "main"]

_OVERVIEW = "fold(items.length, document.title + [...index.keys()].slice(0, 3000).join())"
"""What an agent asks of every open page before it goes on."""

_PNG = b"\x89PNG\r\n\x1a\n"


class Surfer(BrowserAgent):
    """A browser agent in the middle of its task."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.history: list[str] = []

    def recall(self) -> str:
        """The notes, the texts taken so far, an overview of every page."""
        pages = (str(self.browser.evaluate(tab, _OVERVIEW)) for tab in self.tabs)
        return digest_of(text.encode() for text in (*self.history, *self.texts, *pages))

    def work(self, number: int, choice: int) -> dict[str, object]:
        """Change a page, read it, take a picture of it."""
        checks, chance = Checks(), random.Random(choice)  # noqa: S311
        at = chance.randrange(len(self.tabs))
        tab, step = self.tabs[at], f"step({chance.randrange(40)})"
        before = self.browser.evaluate(tab, "digest()")
        # A step made twice takes its changes back.
        self.browser.evaluate(tab, step)
        self.browser.evaluate(tab, step)
        checks.that("page", self.browser.evaluate(tab, "digest()") == before)
        changed = self.browser.evaluate(tab, step)
        self.texts[at] = str(self.browser.evaluate(tab, "document.body.innerText"))
        # A page in the background is never drawn.
        self.browser.call("Page.bringToFront", tab)
        picture = base64.b64decode(self.browser.call("Page.captureScreenshot", tab)["data"])
        checks.that("picture", picture.startswith(_PNG))
        self.images[at] = picture
        self.history.append(f"turn {number}: {step} on {at}\n{self.texts[at][:4_000]}")
        return {"tab": at, "changed": changed, "wrong": checks.wrong}

    def digest(self) -> str:
        """What every page says of itself, texts and notes; pictures differ from run to run."""
        pages = (str(self.browser.evaluate(tab, "digest()")) for tab in self.tabs)
        return digest_of(text.encode() for text in (*pages, *self.texts, *self.history))


def main(arguments: list[str] | None = None) -> None:
    """Open the pages, say so, and wait."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    state = Surfer(folder)
    say({"ready": True})
    serve_turns(state)


if __name__ == "__main__":
    main()

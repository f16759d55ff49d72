"""
Workload B: a tool-calling agent over many turns: searches, pages, schemas, long histories.

See turns.py for the lines and json_agent.py for what it holds; it waits in asyncio.

    python -m agentzip.workloads.tool_user FOLDER
"""

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentzip.workloads.json_agent import (
    TOOLS,
    Message,
    ToolAgent,
    parse_page,
    wait_and_answer,
)
from agentzip.workloads.serve import digest_of
from agentzip.workloads.toolbox import import_toolbox, tool_schemas
from agentzip.workloads.turns import Checks, answer_turns

__all__ = ["ToolUser", "main"]

_PAGES_A_TURN = 12
_CONVERSATIONS_A_TURN = 40
_CONVERSATIONS_NEEDED = 8
_HITS_MAX = 200


class ToolUser(ToolAgent):
    """An agent in the middle of its task."""

    def __init__(self, folder: Path, tools: list[Any] | None = None) -> None:
        super().__init__(folder, tools or [])
        with (folder / "pages.jsonl").open() as file:
            self.html = [str(json.loads(line)["html"]) for line in file]
        self.history: list[dict[str, Any]] = []

    def recall(self) -> str:
        """The history of this task, some conversations, every chunk, its tools."""
        return digest_of(self._needed())

    def _needed(self) -> Iterator[bytes]:
        for value in (*self.history, *self.conversations[:_CONVERSATIONS_NEEDED]):
            yield json.dumps(value).encode()
        for model in self.models[:_CONVERSATIONS_NEEDED]:
            for message in model:
                yield message.model_dump_json().encode()
        yield " ".join(self.topics).encode()
        yield str(sum(len(chunk["text"]) + chunk["lines"] for chunk in self.chunks)).encode()
        for tool in self.tools:
            yield tool.__name__.encode()

    def work(self, number: int, choice: int) -> dict[str, object]:
        """Search, read pages, validate a history, note it all."""
        checks, chance = Checks(), random.Random(choice)  # noqa: S311
        wanted = chance.choice(self.topics)
        hits = self.index[wanted][:_HITS_MAX]
        for hit in hits:
            self.chunks[hit]["score"] = round(chance.random(), 9)
        found = [hit for hit in hits if wanted in str(self.chunks[hit]["text"]).lower()]
        checks.that("search", found == hits)
        texts = [self._read(chance.randrange(len(self.html)), checks) for _ in range(_PAGES_A_TURN)]
        messages = 0
        for _ in range(_CONVERSATIONS_A_TURN):
            messages += self._review(chance.choice(self.conversations), checks)
        note = {
            "turn": number,
            "query": wanted,
            "results": [self.chunks[hit]["text"][:400] for hit in hits[:20]],
            "pages": [text[:2_000] for text in texts],
        }
        checks.that("note", json.loads(json.dumps(note)) == note)
        self.history.append(note)
        return {"word": wanted, "hits": len(hits), "messages": messages, "wrong": checks.wrong}

    def _read(self, page: int, checks: Checks) -> str:
        """Parse a page again; it must be what it was when the agent first saw it."""
        tree = parse_page(self.html[page])
        checks.that("page", tree == self.pages[page])
        pieces, open_nodes = [], [tree]
        while open_nodes:
            node = open_nodes.pop()
            pieces.append(node.text)
            open_nodes += node.children
        return "".join(pieces)

    def _review(self, conversation: dict[str, Any], checks: Checks) -> int:
        """Through the client library's models and back."""
        for message in conversation["messages"]:
            model = Message.model_validate(message)
            again = Message.model_validate_json(model.model_dump_json())
            checks.that("message", again == model)
        return len(conversation["messages"])

    def digest(self) -> str:
        """Everything of the tool agent, and what the turns added."""
        return digest_of([super().digest().encode(), json.dumps(self.history).encode()])


def main(arguments: list[str] | None = None) -> None:
    """Load, say so, and wait."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    state = ToolUser(folder, tool_schemas(import_toolbox(), TOOLS))
    asyncio.run(wait_and_answer(lambda line: answer_turns(state, line)))


if __name__ == "__main__":
    main()

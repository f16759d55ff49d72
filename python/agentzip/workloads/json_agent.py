"""
A tool-calling agent between two calls: message histories, parsed results, models, text chunks.

Waits as such agents do, in an asyncio loop with nothing to do.

    python -m agentzip.workloads.json_agent FOLDER
"""

import ast
import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agentzip.workloads.serve import answer, digest_of, say
from agentzip.workloads.toolbox import import_toolbox, tool_schemas

__all__ = ["TOOLS", "ToolAgent", "chunks_of", "json_lines", "main", "wait_and_answer", "words_of"]

_CHUNK = 900
_CHUNK_OVERLAP = 120
_PARSED_SOURCES = 12
"""Source files whose syntax tree is kept: a tree takes some thirty times its text."""

TOOLS = 400
"""Schemas that client libraries and tools bring along."""

_TOPIC_HITS = 20
"""Chunks that a word must be in before the agent would search for it."""


class _ToolCall(BaseModel):
    """One tool call of a message."""

    id: str
    name: str
    arguments: str


class _Message(BaseModel):
    """One message of a history, as client libraries model it."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str
    tool_calls: list[_ToolCall] = []
    tool_call_id: str | None = None


@dataclass(slots=True)
class _Node:
    """An element of a parsed page."""

    tag: str
    attributes: dict[str, str | None]
    children: list["_Node"] = field(default_factory=list)
    text: str = ""


class _TreeBuilder(HTMLParser):
    """Makes a tree of nodes, as scraping libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.root = _Node("document", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A child of the innermost open element."""
        node = _Node(tag, dict(attrs))
        self._open[-1].children.append(node)
        self._open.append(node)

    def handle_endtag(self, tag: str) -> None:
        """Close up to the element with this tag."""
        if any(node.tag == tag for node in self._open[1:]):
            while self._open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        """Text belongs to the innermost element."""
        self._open[-1].text += data


class ToolAgent:
    """What the agent holds."""

    def __init__(self, folder: Path, tools: Sequence[Any] = ()) -> None:
        self.tools = tools
        self.conversations = list(json_lines(folder / "conversations.jsonl"))
        self.models = [
            [_Message.model_validate(message) for message in conversation["messages"]]
            for conversation in self.conversations[::3]
        ]
        self.results = [
            json.loads(message["content"])
            for conversation in self.conversations
            for message in conversation["messages"]
            if message["role"] == "tool"
        ]
        documents = list(json_lines(folder / "documents.jsonl"))
        self.chunks = [chunk for document in documents for chunk in chunks_of(document)]
        self.index: dict[str, list[int]] = {}
        for number, chunk in enumerate(self.chunks):
            for word in dict.fromkeys(words_of(chunk["text"])):
                self.index.setdefault(word, []).append(number)
        self.topics = [word for word, where in self.index.items() if len(where) >= _TOPIC_HITS]
        sources = [document["text"] for document in documents if document["name"].endswith(".py")]
        self.syntax = [tree for text in sources[:_PARSED_SOURCES] if (tree := _parse(text))]
        self.pages = [_parse_page(page["html"]) for page in json_lines(folder / "pages.jsonl")]

    def step(self, number: int) -> dict[str, object]:
        """A search and a look through one history; its messages and some chunks change."""
        conversation = self.conversations[number % len(self.conversations)]
        wanted = self.topics[number * 37 % len(self.topics)]
        # Each change is its own inverse; see serve.py.
        for message in conversation["messages"]:
            message["content"] = message["content"][::-1]
        hits = self.index[wanted][:200]
        for hit in hits:
            self.chunks[hit]["text"] = self.chunks[hit]["text"][::-1]
        model = self.models[number % len(self.models)]
        for entry in model:
            entry.role = entry.role[::-1]
        result = self.results[number % len(self.results)]
        for row in result["rows"]:
            row["active"] = not row["active"]
        return {"word": wanted, "hits": len(hits), "messages": len(conversation["messages"])}

    def digest(self) -> str:
        """Every history, model, result, chunk and tree."""
        return digest_of(self._parts())

    def _parts(self) -> Iterator[bytes]:
        for value in (*self.conversations, *self.results, *self.chunks):
            yield json.dumps(value).encode()
        for model in self.models:
            for message in model:
                yield message.model_dump_json().encode()
        for word, numbers in self.index.items():
            yield f"{word}:{numbers}".encode()
        for tree in self.syntax:
            yield ast.dump(tree, include_attributes=True).encode()
        for tool in self.tools:
            yield f"{tool.__name__}{tool.model_fields}".encode()
        for page in self.pages:
            yield repr(page).encode()


def json_lines(path: Path) -> Iterator[Any]:
    """The objects of a file with one on each line."""
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def words_of(text: str) -> list[str]:
    """What can be searched for."""
    return re.findall(r"[a-z_]{4,}", text.lower())


def chunks_of(document: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The overlapping pieces of a text that an agent searches in."""
    text = document["text"]
    for number, start in enumerate(range(0, len(text), _CHUNK - _CHUNK_OVERLAP)):
        piece = text[start : start + _CHUNK]
        where = {"source": document["name"], "start": start, "number": number}
        yield {"text": piece, "metadata": where, "score": None, "lines": piece.count("\n")}


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _parse_page(page: str) -> _Node:
    """The tree of an HTML text."""
    builder = _TreeBuilder()
    builder.feed(page)
    return builder.root


async def wait_and_answer(answer_line: Callable[[str], None]) -> None:
    """Answer until stdin ends; waits in the loop, as agents with asyncio do."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say({"ready": True})
    while line := await reader.readline():
        answer_line(line.decode())


def main(arguments: list[str] | None = None) -> None:
    """Load, say so, and wait."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    tools = tool_schemas(import_toolbox(), TOOLS)
    state = ToolAgent(folder, tools)
    asyncio.run(wait_and_answer(lambda line: answer(state, line)))


if __name__ == "__main__":
    main()

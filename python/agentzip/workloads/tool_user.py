"""
Workload B: a tool-calling agent over many turns, with langchain, pydantic, httpx, bs4 and lxml.

It holds long histories as messages, an index of its documents, schemas of its tools, and pages that
it has read.  In each turn the model asks for tools: it searches, opens pages and lists records over
HTTP (tool_server.py, a process beside it), validates and parses what comes, and takes histories
through JSON and back.  It waits in asyncio; see turns.py for the lines.

    python -m agentzip.workloads.tool_user FOLDER
"""

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import lxml.html
from bs4 import BeautifulSoup
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, ConfigDict

from agentzip.workloads.json_agent import (
    TOOLS,
    chunks_of,
    json_lines,
    wait_and_answer,
    words_of,
)
from agentzip.workloads.serve import digest_of
from agentzip.workloads.tool_server import tool_server
from agentzip.workloads.toolbox import import_toolbox, tool_schemas
from agentzip.workloads.turns import Checks, answer_turns

__all__ = ["ToolUser", "main"]

_PAGES_A_TURN = 3
_RECORDS_A_TURN = 4
_REVIEWS_A_TURN = 6
_CONVERSATIONS_NEEDED = 8
_HITS_MAX = 20
_PAGES_OPEN = 6
"""Parsed pages that are kept: a tree takes some fifty times its text."""

_TOPIC_HITS = 20
"""Chunks that a word must be in before the agent would search for it."""


class _Record(BaseModel):
    """A row of a tool's result."""

    model_config = ConfigDict(extra="forbid")

    id: str
    name: str
    owner: str
    digest: str
    amount: float
    active: bool
    tags: list[str]
    snippet: str


class _Records(BaseModel):
    """What a tool that lists something answers."""

    tool: str
    count: int
    rows: list[_Record]
    next: str | None


class ToolUser:
    """
    An agent in the middle of its task.

    Args:
        folder: Its data.
        web: Where its tools are served.
        schemas: Models of the arguments of what else it could call.
    """

    def __init__(self, folder: Path, web: httpx.Client, schemas: list[Any] | None = None) -> None:
        self._web = web
        self.conversations = list(json_lines(folder / "conversations.jsonl"))
        self.histories = [list(map(_message, found["messages"])) for found in self.conversations]
        self.results = [_results(history) for history in self.histories]
        self.documents = [
            Document(page_content=chunk["text"], metadata=chunk["metadata"])
            for document in json_lines(folder / "documents.jsonl")
            for chunk in chunks_of(document)
        ]
        self.index: dict[str, list[int]] = {}
        for number, document in enumerate(self.documents):
            for word in dict.fromkeys(words_of(document.page_content)):
                self.index.setdefault(word, []).append(number)
        self.topics = [word for word, where in self.index.items() if len(where) >= _TOPIC_HITS]
        calls = (self.search, self.open_page, self.list_records)
        self.tools = {call.__name__: StructuredTool.from_function(call) for call in calls}
        self.schemas = [
            convert_to_openai_tool(one) for one in (*self.tools.values(), *(schemas or []))
        ]
        self.pages = sorted(path.name for path in (folder / "site").glob("page-*.html"))
        self.lists = sorted(path.name for path in (folder / "site").glob("list-*.json"))
        self.open: dict[str, BeautifulSoup] = {}
        # What each page says is noted at the first look, and must be said again later.
        self.seen = {name: self.open_page(name)["text"] for name in self.pages}
        self.records = {name: self.list_records(name) for name in self.lists}
        self.task: list[BaseMessage] = [SystemMessage("You work for somebody: use your tools.")]

    # ── tools ────────────────────────────────────────────────────────────────────────────────────
    def search(self, query: str, limit: int = _HITS_MAX) -> list[dict[str, Any]]:
        """Chunks of the documents that a word is in."""
        found = [self.documents[number] for number in self.index.get(query, [])[:limit]]
        return [{"text": one.page_content, **one.metadata} for one in found]

    def open_page(self, name: str) -> dict[str, Any]:
        """Fetch a page and read it: its title, its text, where it leads."""
        page = self._fetch(name)
        tree = BeautifulSoup(page, "lxml", from_encoding="utf-8")
        self.open.pop(name, None)
        self.open[name] = tree
        while len(self.open) > _PAGES_OPEN:
            del self.open[next(iter(self.open))]
        title = tree.title.get_text() if tree.title is not None else ""
        links = [str(link["href"]) for link in tree.find_all("a", href=True)]
        return {"title": title, "text": tree.get_text(" ", strip=True), "links": links}

    def list_records(self, name: str) -> list[dict[str, Any]]:
        """Fetch a list of records; what does not fit its schema is an error."""
        found = _Records.model_validate_json(self._fetch(name))
        return [record.model_dump() for record in found.rows]

    def _fetch(self, name: str) -> bytes:
        answer = self._web.get(f"/{name}")
        answer.raise_for_status()
        return answer.content

    # ── turns ────────────────────────────────────────────────────────────────────────────────────
    def recall(self) -> str:
        """The task so far, some conversations, all documents, the schemas of its tools."""
        return digest_of(self._needed())

    def _needed(self) -> Iterator[bytes]:
        for history in (self.task, *self.histories[:_CONVERSATIONS_NEEDED]):
            yield json.dumps(messages_to_dict(history)).encode()
        for document in self.documents:
            yield document.page_content.encode()
        yield " ".join(self.topics).encode()
        yield json.dumps(self.schemas).encode()

    def work(self, number: int, choice: int) -> dict[str, object]:
        """Call the tools that the model asks for, look at what came, review histories."""
        checks, chance = Checks(), random.Random(choice)  # noqa: S311
        query = chance.choice(self.topics)
        asked = [("search", {"query": query})]
        asked += [
            ("open_page", {"name": one}) for one in chance.choices(self.pages, k=_PAGES_A_TURN)
        ]
        asked += [
            ("list_records", {"name": one}) for one in chance.choices(self.lists, k=_RECORDS_A_TURN)
        ]
        calls = [
            {"name": name, "args": arguments, "id": f"call_{number}_{at}", "type": "tool_call"}
            for at, (name, arguments) in enumerate(asked)
        ]
        self.task += [HumanMessage(f"Look into {query}."), AIMessage("", tool_calls=calls)]
        for call in calls:
            self.task.append(self._call(call, checks))
        for _ in range(_REVIEWS_A_TURN):
            at = chance.randrange(len(self.histories))
            text = json.dumps(messages_to_dict(self.histories[at]))
            again = messages_from_dict(json.loads(text))
            checks.that("history", again == self.histories[at])
            checks.that("results", _results(again) == self.results[at])
        hits = len(self.index[query])
        self.task.append(AIMessage(f"{query} is in {hits} places."))
        return {"query": query, "hits": hits, "messages": len(self.task), "wrong": checks.wrong}

    def _call(self, call: dict[str, Any], checks: Checks) -> ToolMessage:
        """Have a tool called as the framework does it; its answer is checked in another way."""
        answer = self.tools[call["name"]].invoke(call)
        assert isinstance(answer, ToolMessage)
        found, arguments = json.loads(str(answer.content)), call["args"]
        match call["name"]:
            case "search":
                checks.that(
                    "search", all(arguments["query"] in one["text"].lower() for one in found)
                )
            case "open_page":
                name = arguments["name"]
                checks.that("page", found["text"] == self.seen[name])
                parser = lxml.html.HTMLParser(encoding="utf-8")
                tree = lxml.html.document_fromstring(self._fetch(name), parser=parser)
                checks.that("links", found["links"] == tree.xpath("//a/@href"))
            case "list_records":
                checks.that("records", found == self.records[arguments["name"]])
        return answer

    def digest(self) -> str:
        """Everything it holds."""
        return digest_of(self._parts())

    def _parts(self) -> Iterator[bytes]:
        yield from self._needed()
        for value in (*self.conversations, self.records, self.seen):
            yield json.dumps(value).encode()
        for history in self.histories:
            yield json.dumps(messages_to_dict(history)).encode()
        for result in self.results:
            yield "".join(found.model_dump_json() for found in result).encode()
        for document in self.documents:
            yield document.model_dump_json().encode()
        for word, numbers in self.index.items():
            yield f"{word}:{numbers}".encode()
        for name, tree in self.open.items():
            yield f"{name}:{tree.decode()}".encode()


def _message(entry: dict[str, Any]) -> BaseMessage:
    """A message of a client library, as the framework models it."""
    content, more = entry["content"], {key: entry[key] for key in ("id", "at") if key in entry}
    match entry["role"]:
        case "system":
            return SystemMessage(content, additional_kwargs=more)
        case "user":
            return HumanMessage(content, additional_kwargs=more)
        case "tool":
            call = entry["tool_call_id"]
            return ToolMessage(content, tool_call_id=call, additional_kwargs=more)
    calls = [
        {"name": call["name"], "args": json.loads(call["arguments"]), "id": call["id"]}
        for call in entry.get("tool_calls", [])
    ]
    return AIMessage(content, tool_calls=calls, additional_kwargs=more)


def _results(history: list[BaseMessage]) -> list[_Records]:
    """What tools have answered in a history."""
    answers = (one for one in history if isinstance(one, ToolMessage))
    return [_Records.model_validate_json(str(one.content)) for one in answers]


def main(arguments: list[str] | None = None) -> None:
    """Load, say so, and wait."""
    folder = Path((sys.argv[1:] if arguments is None else arguments)[0])
    schemas = tool_schemas(import_toolbox(), TOOLS)
    # No proxy that the environment may name: these tools are on this host.
    with tool_server(folder / "site") as url, httpx.Client(base_url=url, trust_env=False) as web:
        state = ToolUser(folder, web, schemas)
        asyncio.run(wait_and_answer(lambda line: answer_turns(state, line)))


if __name__ == "__main__":
    main()

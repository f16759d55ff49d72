"""
The data files of one instance, made before it starts and by another process.

An instance that made its own data would carry the maker's freed garbage, which is alike in all of
them and makes them look more similar than they are.

    python -m agentzip.workloads.material --kind json --instance 0 --of 8 --folder F --size 1.0
"""

import argparse
import base64
import csv
import hashlib
import html
import json
import random
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentzip.workloads.text import Vocabulary, documents, moments
from agentzip.workloads.website import web_page

__all__ = ["ORDER_COLUMNS", "main", "make"]

ORDER_COLUMNS = [
    *("order_id", "customer_id", "ordered_at", "category", "price", "quantity"),
    *("discount", "city", "channel", "mail", "reference", "note"),
]

_ORDERS = 45_000
_CUSTOMERS = 9_000
_CONVERSATIONS = 50
_JSON_DOCUMENT_BYTES = 3_500_000
_SITE_PAGES, _SITE_LISTS = 30, 20
_NODE_DOCUMENT_BYTES = 12_000_000
_NODE_ROWS = 18_000
_BROWSER_PAGES = 3
_PAGE_DOCUMENT_BYTES = 900_000
_IMAGES = 12
_IMAGE_WIDTH, _IMAGE_HEIGHT = 200, 140
"""All at size 1.0."""

_SITE_PAGE_BYTES_MAX = 40_000
"""Text of a page; with its elements around it it is some times as much."""


class _Source:
    """Everything that is drawn for one instance."""

    def __init__(self, instance: int, instances: int, size: float) -> None:
        self.instance, self.instances, self.size = instance, instances, size
        self.seed = 7_919 * (instance + 1)
        self.chance = random.Random(self.seed)  # noqa: S311
        self.words = Vocabulary(self.seed)

    def documents(self, bytes_max: int) -> Iterator[tuple[str, str]]:
        return documents(self.instance, self.instances, int(bytes_max * self.size))

    def identifier(self) -> str:
        return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))


def make(kind: str, instance: int, instances: int, folder: Path, size: float) -> None:
    """Make the files of one instance in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _MAKERS[kind](_Source(instance, instances, size), folder)


def _orders(source: _Source, count: int) -> Iterator[list[str]]:
    """Orders: few customers order most, prices are log-normal, one in fifty comes twice."""
    chance, words = source.chance, source.words
    categories = {name: chance.uniform(5, 80) for name in words.words[40:52]}
    cities = [name.capitalize() for name in words.words[60:90]]
    mails = [words.address() for _ in range(_CUSTOMERS)]
    homes = [chance.choice(cities) for _ in range(_CUSTOMERS)]
    times = moments(source.seed, 90)
    for number in range(count):
        customer = int(chance.paretovariate(1.1)) % _CUSTOMERS
        category = chance.choice(list(categories))
        price = chance.lognormvariate(0, 0.6) * categories[category]
        row = [
            str(500_000 + 3 * number + source.instance * 1_000_000),
            str(customer),
            next(times).isoformat(timespec="seconds"),
            category,
            "" if chance.random() < 0.01 else f"{price:.2f}",
            str(min(12, int(chance.paretovariate(1.6)))),
            chance.choice(["0", "0", "0", "0.05", "0.1"]),
            homes[customer],
            chance.choice(["web", "web", "shop", "phone"]),
            mails[customer],
            f"R{source.instance:02}-{number:07}-{chance.randrange(97):02}",
            words.sentence() if chance.random() < 0.7 else "",
        ]
        yield row
        if chance.random() < 0.02:
            yield row


def _make_python(source: _Source, folder: Path) -> None:
    with (folder / "orders.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(ORDER_COLUMNS)
        writer.writerows(_orders(source, int(_ORDERS * source.size)))
    with (folder / "mails.txt").open("w") as file:
        for _ in range(int(2_000 * source.size)):
            file.write(_mail(source) + "\n\x0c\n")


def _mail(source: _Source) -> str:
    words = source.words
    head = f"From: {words.address()}\nTo: {words.address()}\nSubject: {words.sentence()}\n\n"
    body = "\n\n".join(words.paragraph(source.chance.randint(2, 6)) for _ in range(3))
    return f"{head}{words.pick(1)[0].capitalize()},\n\n{body}\n\n-- \n{words.address()}\n"


def _make_json(source: _Source, folder: Path) -> None:
    with (folder / "conversations.jsonl").open("w") as file:
        for _ in range(max(2, int(_CONVERSATIONS * source.size))):
            file.write(json.dumps(_conversation(source)) + "\n")
    _write_documents(source, folder, _JSON_DOCUMENT_BYTES)
    with (folder / "pages.jsonl").open("w") as file:
        for _ in range(max(2, int(40 * source.size))):
            file.write(json.dumps(_web_page(source, 60)) + "\n")


def _make_tools(source: _Source, folder: Path) -> None:
    _make_json(source, folder)
    site = folder / "site"
    site.mkdir(exist_ok=True)
    # Behind those that the agent has an index of: what it reads on the web is news to it.
    texts = list(source.documents(2 * _JSON_DOCUMENT_BYTES))
    texts = texts[-max(2, int(_SITE_PAGES * source.size)) :]
    names = [f"page-{number:03}.html" for number in range(len(texts))]
    for number, (name, text) in enumerate(texts):
        menu = source.chance.sample(names, min(12, len(names)))
        page = web_page(name, text[:_SITE_PAGE_BYTES_MAX], menu)
        (site / names[number]).write_text(page)
    for number in range(max(2, int(_SITE_LISTS * source.size))):
        (site / f"list-{number:03}.json").write_text(_tool_result(source, "list"))


def _conversation(source: _Source) -> dict[str, Any]:
    chance, words = source.chance, source.words
    times = moments(source.seed, 20)
    messages: list[dict[str, Any]] = [{"role": "system", "content": words.paragraph(25)}]
    for _ in range(chance.randint(8, 18)):
        call = "call_" + "".join(chance.choices("abcdefghjkmnpqrstuvwxyz0123456789", k=24))
        tool = chance.choice(["search", "sql", "read_file", "http_get", "calendar"])
        asked = {"query": " ".join(words.pick(5)), "limit": chance.choice([10, 20, 50])}
        request = {"id": call, "name": tool, "arguments": json.dumps(asked)}
        messages += [
            {"role": "user", "content": words.paragraph(chance.randint(1, 5))},
            {"role": "assistant", "content": words.sentence(), "tool_calls": [request]},
            {"role": "tool", "tool_call_id": call, "content": _tool_result(source, tool)},
            {"role": "assistant", "content": words.paragraph(chance.randint(3, 9))},
        ]
        for message in messages[-4:]:
            message["id"] = source.identifier()
            message["at"] = next(times).isoformat()
    return {"id": source.identifier(), "title": words.sentence(), "messages": messages}


def _tool_result(source: _Source, tool: str) -> str:
    chance, words = source.chance, source.words
    rows = []
    for _ in range(chance.randint(10, 40)):
        digest = hashlib.md5(source.identifier().encode(), usedforsecurity=False).hexdigest()
        rows.append(
            {
                "id": source.identifier(),
                "name": " ".join(words.pick(3)).title(),
                "owner": words.address(),
                "digest": digest,
                "amount": round(chance.lognormvariate(3, 1), 2),
                "active": chance.random() < 0.8,
                "tags": words.pick(chance.randint(0, 4)),
                "snippet": words.sentence(),
            }
        )
    return json.dumps({"tool": tool, "count": len(rows), "rows": rows, "next": None})


def _write_documents(source: _Source, folder: Path, bytes_max: int) -> None:
    with (folder / "documents.jsonl").open("w") as file:
        for name, text in source.documents(bytes_max):
            file.write(json.dumps({"name": name, "text": text}) + "\n")


def _make_node(source: _Source, folder: Path) -> None:
    _write_documents(source, folder, _NODE_DOCUMENT_BYTES)
    with (folder / "rows.jsonl").open("w") as file:
        for row in _orders(source, int(_NODE_ROWS * source.size)):
            file.write(json.dumps(dict(zip(ORDER_COLUMNS, row, strict=True))) + "\n")


def _make_browser(source: _Source, folder: Path) -> None:
    for number in range(max(1, round(_BROWSER_PAGES * source.size))):
        page = _web_page(source, int(500 * min(source.size, 1.0)) + 20)
        script = (Path(__file__).parent / "browser_page.js").read_text()
        # Each page another part of the share: two tabs do not show the same.
        texts = [text for _, text in source.documents(_PAGE_DOCUMENT_BYTES * (number + 1))]
        texts = texts[len(texts) * number // (number + 1) :]
        data = {"rows": page["rows"], "documents": texts, "seed": source.seed + number}
        images = "".join(_image(source) for _ in range(_IMAGES))
        # A closing tag inside a text would end the script.
        packed = json.dumps(data).replace("</", "<\\/")
        (folder / f"page-{number}.html").write_text(
            f"<!doctype html><meta charset=utf-8><title>{html.escape(page['title'])}</title>"
            f"<style>td{{padding:2px 8px}} p{{max-width:60em}}</style>{page['html']}"
            f"{images}<script>const material = {packed};\n{script}</script>"
        )


def _web_page(source: _Source, rows_count: int) -> dict[str, Any]:
    chance, words = source.chance, source.words
    title = words.sentence()
    rows = [
        [
            *(source.identifier()[:8], words.address(), f"{chance.lognormvariate(3, 1):.2f}"),
            *(words.pick(1)[0], words.sentence()),
        ]
        for _ in range(rows_count)
    ]
    cells = "\n".join(
        f'<tr id="r{number}" class="{row[3]}">{"".join(f"<td>{cell}</td>" for cell in row)}</tr>'
        for number, row in enumerate(rows)
    )
    sections = "\n".join(
        f"<section><h2>{words.sentence()}</h2><p>{words.paragraph(6)}</p>"
        f'<ul><li><a href="/{"-".join(words.pick(3))}">{words.sentence()}</a></li></ul></section>'
        for _ in range(max(3, rows_count // 6))
    )
    body = f"<h1>{title}</h1>\n{sections}\n<table>{cells}</table>"
    return {"title": title, "html": f"<main>{body}</main>", "rows": rows}


def _image(source: _Source) -> str:
    """A picture as photographs are: slow changes with noise on them, which no codec removes."""
    chance = source.chance
    slopes = [(chance.uniform(-1, 1), chance.uniform(-1, 1)) for _ in range(3)]
    rows = []
    for y in range(_IMAGE_HEIGHT):
        noise = chance.randbytes(3 * _IMAGE_WIDTH)
        row = bytearray(1)
        for x in range(_IMAGE_WIDTH):
            for channel, (across, down) in enumerate(slopes):
                grain = noise[3 * x + channel] >> 4
                row.append(int(110 + 50 * across * x / 99 + 50 * down * y / 99 + grain) & 255)
        rows.append(bytes(row))
    head = struct.pack(">IIBBBBB", _IMAGE_WIDTH, _IMAGE_HEIGHT, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(b"".join(rows), 1)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}">'


_MAKERS: dict[str, Callable[[_Source, Path], None]] = {
    "python": _make_python,
    "json": _make_json,
    "tools": _make_tools,
    "browser": _make_browser,
    "node": _make_node,
}


def main(arguments: list[str] | None = None) -> None:
    """Make the files of one instance."""
    parser = argparse.ArgumentParser(prog="agentzip.workloads.material", description=__doc__)
    parser.add_argument("--kind", choices=sorted(_MAKERS), required=True)
    parser.add_argument("--instance", type=int, required=True)
    parser.add_argument("--of", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", type=float, default=1.0)
    options = parser.parse_args(arguments)
    make(options.kind, options.instance, options.of, options.folder, options.size)


if __name__ == "__main__":
    main()

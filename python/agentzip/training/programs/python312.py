"""
What the Python dictionary is made from: an interpreter with the objects that agents keep.

Modules as agents import them, then texts, records, messages, tables and classes with generated
contents: a few of each, because the interpreter's own memory is what sandboxes have in common.
It reads nothing but the standard library, says `ready`, and waits to be ended.
"""

import argparse
import ast
import asyncio
import collections
import csv
import dataclasses
import datetime as dt
import decimal
import email.message
import html.parser
import http.client
import io
import json
import logging
import pathlib
import random
import re
import signal
import sqlite3
import ssl
import string
import subprocess
import sys
import tempfile
import threading
import typing
import unittest.mock
import urllib.request
import uuid
import xml.etree.ElementTree as ET
import zipfile

_SEED = 20
_MODULES = [
    *(argparse, asyncio, csv, email.message, html.parser, http.client, logging, sqlite3),
    *(ssl, subprocess, tempfile, threading, unittest.mock, urllib.request, zipfile),
]

_WORDS = re.findall(
    r"\w+",
    """
    the of and to in a is that for it as was with be by on not he this are or his from at which
    but have an had they you were their one all we can her has there been if more when will would
    who so no out up said what its about than into them only other time new some could these two
    may first then do any like my now over such our man me even most made after also did many off
    before must well back through years where much your way down should because long each just
    state people those too mr how little good world make very year still see own work men day get
    """,
)


@dataclasses.dataclass
class Step:
    """One step of an agent."""

    number: int
    tool: str
    arguments: dict[str, typing.Any]
    output: str
    seconds: float = 0.0
    children: list["Step"] = dataclasses.field(default_factory=list)


def text(source: random.Random, words: int) -> str:
    """Sentences of common words."""
    chosen = [source.choice(_WORDS) for _ in range(words)]
    for position in range(0, words, 11):
        chosen[position] = chosen[position].capitalize()
        chosen[min(position + 10, words - 1)] += "."
    return " ".join(chosen)


def message(source: random.Random, number: int) -> dict[str, typing.Any]:
    """A message of a conversation, as model interfaces have them."""
    return {
        "id": f"msg_{source.getrandbits(96):024x}",
        "role": ("user", "assistant", "tool")[number % 3],
        "content": [{"type": "text", "text": text(source, source.randrange(5, 120))}],
        "usage": {"input_tokens": source.randrange(9000), "output_tokens": source.randrange(900)},
        "created_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number * 7),
        "stop_reason": None if number % 5 else "end_turn",
    }


def record(source: random.Random, number: int) -> dict[str, typing.Any]:
    """A row of a table of generated customers."""
    return {
        "id": number,
        "uuid": str(uuid.UUID(int=source.getrandbits(128))),
        "name": " ".join(source.choices(string.ascii_uppercase, k=2)) + source.choice(_WORDS),
        "amount": round(source.random() * 1000, 2),
        "price": decimal.Decimal(source.randrange(10**6)) / 100,
        "tags": source.sample(_WORDS, 3),
        "active": bool(number % 3),
        "score": source.gauss(0, 1),
    }


def page(source: random.Random, number: int) -> str:
    """A web page."""
    items = "".join(
        f'<li class="item"><a href="/items/{number}/{i}">{text(source, 6)}</a></li>'
        for i in range(20)
    )
    return (
        f"<!DOCTYPE html><html><head><title>{text(source, 4)}</title></head>"
        f'<body><div id="main"><h1>{text(source, 3)}</h1><ul>{items}</ul></div></body></html>'
    )


def program(source: random.Random, number: int) -> str:
    """Source code, as coding agents read and write it."""
    name = f"{source.choice(_WORDS)}_items"  # some words are keywords
    return (
        f"def {name}_{number}(self, value: int, *, limit: int = {number}) -> dict[str, int]:\n"
        f'    """{text(source, 8)}"""\n'
        f"    result = {{}}\n"
        f"    for index, item in enumerate(self.{name}):\n"
        f"        if item > limit and index % {number % 7 + 2} == 0:\n"
        f"            result[str(item)] = value + index\n"
        f"    return result\n"
    )


def memory(source: random.Random) -> dict[str, object]:
    """Everything that is kept."""
    table = sqlite3.connect(":memory:")
    table.execute("create table items (id integer primary key, name text, amount real)")
    rows = [(i, text(source, 4), source.random()) for i in range(666)]
    table.executemany("insert into items values (?, ?, ?)", rows)
    programs = [program(source, number) for number in range(50)]
    pages = [page(source, number) for number in range(20)]
    records = [record(source, number) for number in range(666)]
    tree = ET.Element("items")
    for number in range(100):
        ET.SubElement(tree, "item", id=str(number)).text = text(source, 3)
    table_text = io.StringIO()
    csv.writer(table_text).writerows(rows[:200])
    return {
        "messages": [message(source, number) for number in range(200)],
        "records": records,
        "texts": [json.dumps(item, default=str) for item in records[:300]],
        "parsed": [json.loads(json.dumps(item, default=str)) for item in records[300:600]],
        "steps": [
            Step(number, source.choice(_WORDS), {"path": f"/data/{number}"}, text(source, 40))
            for number in range(200)
        ],
        "trees": [ast.parse(item) for item in programs[:20]],
        "code": [compile(item, "<agent>", "exec") for item in programs],
        "programs": programs,
        "pages": pages,
        "links": [re.findall(r'href="([^"]+)"', item) for item in pages],
        "counts": collections.Counter(word for item in pages for word in item.split()),
        "numbers": [source.random() for _ in range(2000)],
        "sets": [frozenset(source.sample(_WORDS, 8)) for _ in range(133)],
        "paths": [pathlib.PurePosixPath("/data") / str(i) / "result.json" for i in range(133)],
        "tuples": [(i, i * i, str(i)) for i in range(1000)],
        "bytes": [text(source, 60).encode() for _ in range(66)],
        "wide": [text(source, 12) + " \u2713 \u20ac \u4f60\u597d" for _ in range(66)],
        "table": table,
        "tree": tree,
        "csv": table_text.getvalue(),
        "modules": _MODULES,
    }


kept = memory(random.Random(_SEED))  # noqa: S311  (data, not keys)
sys.stdout.write("ready\n")
sys.stdout.flush()
while True:
    signal.pause()

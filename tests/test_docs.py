"""
The documentation as a test: what a page shows is what the program does.

Checks links inside the checkout, the help text in the README, and runs every code block that says
so in its opening line (```` ```bash run ```` or ```` ```python run ````).
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from source_tree import ROOT, files_with, short

LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(
    r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=mark)[ ]*$", re.MULTILINE | re.DOTALL
)
HELP = "$ agentzip --help\n"


def test_links_inside_the_checkout_lead_somewhere() -> None:
    """Every relative link names a file that exists, and every anchor a heading in it."""
    broken = []
    for page in files_with(".md"):
        for link in LINK.findall(FENCE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or not target.is_relative_to(ROOT):
                broken.append(f"{short(page)}: {link}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in _anchors(target):
                broken.append(f"{short(page)}: {link}: no such heading")

    assert [] == broken


def test_the_readme_shows_the_real_help() -> None:
    """The block that starts with `$ agentzip --help` in the README is what the command prints."""
    shown = [
        body.removeprefix(HELP) for _, body in _blocks(ROOT / "README.md") if body.startswith(HELP)
    ]

    assert 1 == len(shown)
    assert _trimmed(_run([_agentzip(), "--help"]).stdout) == _trimmed(shown[0])


def _blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Info string and body of every fenced block of a page."""
    for match in FENCE.finditer(page.read_text()):
        yield match["info"].strip(), match["body"]


def _runnable() -> Iterator[tuple[str, str, str]]:
    for page in files_with(".md"):
        for number, (info, body) in enumerate(_blocks(page), 1):
            if info in {"bash run", "python run"}:
                yield f"{short(page)}-{number}", info.split()[0], body


@pytest.mark.parametrize(
    ("language", "body"),
    [pytest.param(language, body, id=name) for name, language, body in _runnable()]
    or [pytest.param("bash", "true", id="none-marked")],
)
def test_marked_code_blocks_run(language: str, body: str, tmp_path: Path) -> None:
    """A code block marked `run` ends well when it is run as it stands, in an empty folder."""
    program = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}

    result = _run([*program[language], body], folder=tmp_path)

    assert 0 == result.returncode, result.stdout + result.stderr


def _anchors(page: Path) -> set[str]:
    """The anchors that a Markdown viewer makes from the headings of a page."""
    headings = re.findall(r"^#+\s+(.*?)\s*$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _agentzip() -> str:
    return os.path.join(os.path.dirname(sys.executable), "agentzip")


def _run(command: list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run with the environment's programs first and a terminal of 80 columns without colour."""
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    environment["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    environment |= {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _trimmed(text: str) -> list[str]:
    """Lines without the blanks at their ends, and without empty lines around them."""
    return [line.rstrip() for line in text.strip("\n").splitlines()]

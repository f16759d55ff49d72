"""
The files of this checkout, as the style and documentation tests see them.

Knows which files belong to the project and how to take comments and strings out of Rust and C, so
that a rule about code is not triggered by a sentence about it.  Holds no rule itself: those are in
test_tidy.py and test_docs.py.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Folders that tools make; only looked at where there is no git to ask.
_MADE_BY_TOOLS = {".git", ".venv", "target", "dist", "__pycache__"}

# One comment, string or character of Rust or C.  A lifetime ('a) is no character: it has no second
# quote after one character or one escape.
_RUST_TOKEN = re.compile(
    r"""
    (?P<line>//[^\n]*)
  | (?P<block>/\*)
  | (?P<raw>\bb?r(?P<hashes>\#*)"(?s:.*?)"(?P=hashes))
  | (?P<string>b?"(?:\\.|[^"\\])*")
  | (?P<char>b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\'])')
    """,
    re.VERBOSE | re.DOTALL,
)


def project_files() -> list[Path]:
    """Every file that is, or could be, committed: tracked ones, and new ones not ignored."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        names = [name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = list(_walk())
    return sorted(ROOT / name for name in names if (ROOT / name).is_file())


def files_with(*suffixes: str) -> list[Path]:
    """Project files whose name ends in one of the suffixes."""
    return [path for path in project_files() if path.name.endswith(suffixes)]


def short(path: Path) -> str:
    """The path as a person would type it from the top of the checkout."""
    return str(path.relative_to(ROOT))


def without_comments_and_strings(source: str) -> str:
    """Rust or C with comments and literals blanked; every line keeps its number."""
    kept: list[str] = []
    position = 0
    while match := _RUST_TOKEN.search(source, position):
        end = match.end()
        if match["block"]:
            end = _end_of_block_comment(source, match.start())
        kept.append(source[position : match.start()])
        kept.append(re.sub(r"[^\n]", " ", source[match.start() : end]))
        position = end
    kept.append(source[position:])
    return "".join(kept)


def table_rows(page: Path) -> Iterator[tuple[int, str]]:
    """Rows of a page's Markdown tables with their line numbers, without heads and rulers."""
    lines = page.read_text().splitlines()
    ruler = re.compile(r"\|[\s:|-]+\|?$")
    for number, line in enumerate(lines, 1):
        following = lines[number] if number < len(lines) else ""
        if line.startswith("|") and not ruler.match(line) and not ruler.match(following):
            yield number, line


def is_test(reference: str) -> bool:
    """Whether `file::name` names a test, or anything that is defined, in a file of the checkout."""
    file, *names = reference.split("::")
    path = ROOT / file
    if not path.is_file():
        return False
    text = path.read_text()
    return all(re.search(rf"\b(?:def|fn|class)\s+{name}\b", text) for name in names)


def _end_of_block_comment(source: str, start: int) -> int:
    """Rust's block comments nest; C's do not, but nobody opens a second one inside."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(source, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(source)


def _walk() -> Iterator[str]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in _MADE_BY_TOOLS]
        for name in names:
            if not name.endswith((".so", ".pyc")):
                yield os.path.relpath(os.path.join(folder, name), ROOT)

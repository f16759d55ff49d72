"""
The house rules as a test (STYLE.md says them in words).

Each rule looks at every file of the project and names file, line and what to do.  There is no list
of exceptions: a file that outgrows a limit is two files.  What ruff, clippy, mypy and import-linter
can check is left to them.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from source_tree import (
    ROOT,
    files_with,
    is_test,
    project_files,
    short,
    table_rows,
    without_comments_and_strings,
)

FILE_LINES_MAX = 500
RUST_FILE_LINES_MAX = 700  # Rust keeps its small unit tests inside the file; the seam is one file.
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100

CODE = (".py", ".pyi", ".rs", ".c", ".h", ".js", ".mjs", ".sh")
MEASURED = (*CODE, ".toml", "Makefile", ".ci/run")

# Words that name a drawer, or a mechanism that ours is not.
BANNED_NAMES = {
    *("swap", "evict", "reclaim", "hydrate", "session"),
    *("manager", "helper", "helpers", "util", "utils", "common", "misc"),
}

# The one folder that may call the kernel without the compiler's protection.
FENCE = ROOT / "rust" / "pager" / "src" / "sys"


def test_no_file_outgrows_its_room() -> None:
    """A source file stays short enough to be read in one sitting."""
    too_long = []
    for path in files_with(*CODE):
        limit = RUST_FILE_LINES_MAX if path.suffix in {".rs", ".pyi"} else FILE_LINES_MAX
        lines = len(path.read_text().splitlines())
        if lines > limit:
            too_long.append(f"{short(path)}: {lines} lines, at most {limit}")

    assert [] == too_long


def test_no_function_outgrows_a_screen() -> None:
    """A function fits on one screen; a Python docstring does not count."""
    too_long = [
        f"{short(path)}:{line}: {name} has {length} lines, at most {FUNCTION_LINES_MAX}"
        for path in files_with(".py", ".rs", ".c")
        for name, line, length in _functions(path)
        if length > FUNCTION_LINES_MAX
    ]

    assert [] == too_long


def test_lines_fit_side_by_side() -> None:
    """Two files fit beside each other on a screen, and no line ends in blanks."""
    bad = []
    for path in project_files():
        if not short(path).endswith(MEASURED):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if len(line) > LINE_COLUMNS_MAX:
                bad.append(f"{short(path)}:{number}: {len(line)} columns")
            if line != line.rstrip():
                bad.append(f"{short(path)}:{number}: blanks at the end")

    assert [] == bad


def test_every_module_says_what_it_is() -> None:
    """The first thing in a source file is a sentence about it."""
    mute = []
    for path in files_with(*CODE):
        text = path.read_text()
        if path.suffix in {".py", ".pyi"}:
            says = bool(ast.get_docstring(ast.parse(text)))
        else:
            opening = {".rs": r"//!", ".sh": r"#(?!!)"}.get(path.suffix, r"/\*|//")
            says = re.match(rf"(#!.*\n)?\s*({opening})", text) is not None
        if not says:
            mute.append(short(path))

    assert [] == mute


def test_no_module_is_a_drawer() -> None:
    """No file or folder of code has a name that says nothing, or the wrong thing."""
    drawers = [
        f"{short(path)}: {part}"
        for path in files_with(*CODE)
        for part in (*path.relative_to(ROOT).parts[:-1], path.stem)
        if part.removeprefix("test_") in BANNED_NAMES
    ]

    assert [] == drawers


def test_unsafe_and_libc_stay_in_the_fence() -> None:
    """Only rust/pager/src/sys says `unsafe` or calls libc."""
    outside = [
        f"{short(path)}:{number}: {line.strip()}"
        for path in files_with(".rs")
        if not path.is_relative_to(FENCE)
        for number, line in enumerate(_rust_code(path).splitlines(), 1)
        if re.search(r"\bunsafe\b(?!_)|\blibc\s*::|\buse\s+libc\b", line)
    ]

    assert [] == outside


def test_only_the_pager_module_opens_the_native_door() -> None:
    """`agentzip._native` is imported by agentzip.pager alone."""
    package = ROOT / "python" / "agentzip"
    intruders = [
        f"{short(path)}: imports {name}"
        for path in files_with(".py")
        if path.is_relative_to(package) and path != package / "pager.py"
        for name in _imported(path)
        if "_native" in name.split(".")
    ]

    assert [] == intruders


def test_all_lists_are_sorted_and_true() -> None:
    """`__all__` is sorted, names what the module has, and all that other modules take from it."""
    lists: dict[str, list[str]] = {}
    wrong = []
    for path in files_with(".py"):
        tree = ast.parse(path.read_text())
        listed = _dunder_all(tree)
        if listed is None:
            continue
        lists[_module_name(path)] = listed
        if listed != sorted(listed, key=_sort_key):
            wrong.append(f"{short(path)}: __all__ is not sorted")
        missing = set(listed) - _top_level_names(tree)
        wrong += [f"{short(path)}: there is no {name}" for name in sorted(missing)]
    for path in files_with(".py"):
        for name in _imported(path):
            module, _, taken = name.rpartition(".")
            is_module = any((ROOT / "python").glob(f"{name.replace('.', '/')}*"))
            if module in lists and taken not in lists[module] and not is_module:
                wrong.append(f"{short(path)}: {taken} is not in the __all__ of {module}")

    assert [] == wrong


def test_no_trace_of_the_machine_it_was_made_on() -> None:
    """No absolute home or work path, and no package registry's host, stands in a file."""
    folders = "work|root|home"
    hosts = "|".join(
        re.escape(host)
        for host in (
            *("pypi" + ".org", "pythonhosted" + ".org", "static.crates" + ".io"),
            *("index.crates" + ".io", "registry.npmjs" + ".org", "proxy.golang" + ".org"),
            *("repo1.maven" + ".org", "deb.debian" + ".org", "security.debian" + ".org"),
        )
    )
    trace = re.compile(rf"(?<![\w.$}}*-])/(?:{folders})/|{hosts}")
    found = [
        f"{short(path)}:{number}: {match[0]}"
        for path in project_files()
        if path.name != "LICENSE"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := trace.search(line))
    ]

    assert [] == found


def test_open_ends_have_an_issue() -> None:
    """Whoever leaves something open names the issue, as in `TODO(#12)`."""
    open_end = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b(?!\(#\d+\))")
    found = [
        f"{short(path)}:{number}: {line.strip()}"
        for path in files_with(*CODE, ".md", ".toml", "Makefile")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if open_end.search(line)
    ]

    assert [] == found


def test_every_promise_has_its_test() -> None:
    """Each row of PROMISES.md has a number, and names a test that exists (`file::name`)."""
    broken = []
    promises = 0
    for number, line in table_rows(ROOT / "PROMISES.md"):
        promises += 1
        if not re.search(r"\d", line.split("|")[2]):
            broken.append(f"PROMISES.md:{number}: has no number")
        references = re.findall(r"`([\w./-]+\.(?:py|rs)(?:::\w+)*)`", line)
        if not references:
            broken.append(f"PROMISES.md:{number}: names no test")
        broken += [
            f"PROMISES.md:{number}: there is no {reference}"
            for reference in references
            if not is_test(reference)
        ]

    assert [] == broken
    assert promises > 0


def test_every_dependency_has_a_reason() -> None:
    """A dependency has a comment beside or above it that says what it is for."""
    bare = []
    for path in files_with("Cargo.toml", "pyproject.toml"):
        lines = path.read_text().splitlines()
        for name, number in _declared_dependencies(path, lines):
            above = lines[number - 1].strip()
            if "#" not in lines[number] and not above.startswith("#"):
                bare.append(f"{short(path)}:{number + 1}: {name}")

    assert [] == bare


# ── what the rules look at ────────────────────────────────────────────────────────────────────────
def _functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length of each function of a file."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from _python_functions(ast.parse(text))
    elif path.suffix == ".rs":
        yield from _brace_functions(_rust_code(path), re.compile(r"\bfn\s+(\w+)"))
    else:
        # C as it is written here: a definition starts at the margin and its braces balance.
        code = re.sub(r"(?m)^#.*(\\\n.*)*", "", without_comments_and_strings(text))
        yield from _brace_functions(code, re.compile(r"(?m)^\w[\w \t*]*?\b(\w+)\("))


def _python_functions(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node) is not None:
                length -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield node.name, node.lineno, length


def _brace_functions(code: str, head: re.Pattern[str]) -> Iterator[tuple[str, int, int]]:
    for match in head.finditer(code):
        start = _body_start(code, match.end(1))
        if start is None:
            continue  # A declaration.
        end = _matching_brace(code, start)
        line = code.count("\n", 0, match.start(1)) + 1
        yield match[1], line, code.count("\n", match.start(1), end) + 1


def _body_start(code: str, position: int) -> int | None:
    """Where the body opens; None when the head ends in a semicolon outside of brackets."""
    depth = 0
    for index in range(position, len(code)):
        character = code[index]
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif depth == 0 and character in "{;":
            return index if character == "{" else None
    return None


def _matching_brace(code: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.start()
    return len(code)


def _rust_code(path: Path) -> str:
    return without_comments_and_strings(path.read_text())


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def _dunder_all(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return None


def _top_level_names(tree: ast.Module) -> set[str]:
    """What a module defines or imports at its top level, also only for the type checker."""
    names: set[str] = set()
    typed = [
        item
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for item in node.body
    ]
    for node in [*tree.body, *typed]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(name.id for name in node.targets if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names


def _module_name(path: Path) -> str:
    """`agentzip.host.memory` for python/agentzip/host/memory.py; a package for its __init__."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(part for part in parts if part not in {"python", "tests", "__init__"})


def _sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order ruff's RUF022 keeps."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name


def _declared_dependencies(path: Path, lines: list[str]) -> Iterator[tuple[str, int]]:
    """Each declared dependency and the index of its line."""
    data = tomllib.loads(path.read_text())
    names: set[str] = set()
    if path.name == "Cargo.toml":
        for table in ("dependencies", "dev-dependencies", "build-dependencies"):
            names.update(data.get(table, {}))
        pattern = r"{}\s*="
    else:
        project = data["project"]
        for declared in (project["dependencies"], *project["optional-dependencies"].values()):
            names.update(re.split(r"[^\w-]", entry)[0] for entry in declared)
        pattern = r'\s+"{}[<>=~]'
    for name in sorted(names):
        head = re.compile(pattern.format(re.escape(name)))
        yield from ((name, number) for number, line in enumerate(lines) if head.match(line))

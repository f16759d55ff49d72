"""
Compiles small C programs that come with the package: targets of the self-test and the benchmark.

They are static, so that one runs under any user and in any container without libraries, and its
mappings are few and known.  What was built is kept beside the sources, or in a directory of its own
where the package is installed read-only.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from agentzip.errors import InternalError, Unsupported

__all__ = ["build_programs"]

_FLAGS = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-static", "-pthread"]

_SECONDS_MAX = 120
"""How long one program may take to compile; the largest takes two seconds."""


def build_programs(
    sources: Path, programs: Mapping[str, Sequence[str]], shared: Iterable[Path] = ()
) -> Path:
    """
    Compile what is missing or older than its sources; returns the folder of the programs.

    Args:
        sources: Folder of the sources and their headers.
        programs: Program name -> its sources.
        shared: Headers elsewhere that the sources include.

    Raises:
        Unsupported: there is neither a C compiler nor a full set of programs.
        InternalError: the compiler refused a source.
    """
    folder = _writable_folder(sources)
    headers = [*sources.glob("*.h"), *shared]
    stale = {
        name: paths
        for name, paths in ((n, [sources / part for part in p]) for n, p in programs.items())
        if not _is_fresh(folder / name, [*paths, *headers])
    }
    compiler = shutil.which("cc") or shutil.which("gcc")
    if stale and compiler is None:
        if all((folder / name).exists() for name in programs):
            return folder
        raise Unsupported(f"no C compiler (cc or gcc) to build with: {', '.join(stale)}")
    for name, paths in stale.items():
        _compile(str(compiler), folder / name, paths)
    return folder


def _writable_folder(sources: Path) -> Path:
    beside = sources / "bin"
    try:
        beside.mkdir(exist_ok=True)
        if os.access(beside, os.W_OK):
            return beside
    except OSError:
        pass  # A read-only installation: fall through.
    return Path(tempfile.mkdtemp(prefix="agentzip-programs-"))


def _is_fresh(program: Path, inputs: Iterable[Path]) -> bool:
    if not program.exists():
        return False
    made = program.stat().st_mtime
    return all(path.stat().st_mtime < made for path in inputs)


def _compile(compiler: str, program: Path, sources: Iterable[Path]) -> None:
    # Built under another name first: two runs at once must never execute half a program.
    unfinished = program.with_name(f".{program.name}.{os.getpid()}")
    command = [compiler, *_FLAGS, "-o", str(unfinished), *map(str, sources)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise InternalError(f"cannot compile {program.name}: {done.stderr.strip()[-2000:]}")
    unfinished.replace(program)

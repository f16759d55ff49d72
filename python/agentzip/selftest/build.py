"""
Compiles the C targets.

They are static programs, so that a target runs under any user and in any container without
libraries, and its mappings are few and known.  What was built is kept beside the sources, or in a
directory of its own where the package is installed read-only.
"""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from agentzip.selftest.registry import CheckFailed, CheckSkipped

__all__ = ["BIN_VARIABLE", "PROGRAMS", "SOURCES", "ensure_built"]

SOURCES = Path(__file__).parent / "targets"
"""Where the sources of the targets are."""

BIN_VARIABLE = "AGENTZIP_SELFTEST_BIN"
"""Tells child processes where the binaries are, so that they are compiled once per run."""

PROGRAMS = {
    "memory": ["memory.c"],
    "stress": ["stress.c"],
    "eintr": ["eintr.c"],
    "seccomp_wrap": ["seccomp_wrap.c"],
    "events": [
        *("events.c", "events_map.c", "events_fork.c", "events_io.c", "events_special.c"),
    ],
}
"""Program name -> its sources."""

_FLAGS = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-static", "-pthread"]


@cache
def ensure_built() -> Path:
    """
    Compile what is missing or older than its sources; returns the folder of the binaries.

    Raises:
        CheckSkipped: there is neither a compiler nor a full set of binaries.
        CheckFailed: the compiler refused a source.
    """
    if prepared := os.environ.get(BIN_VARIABLE):
        return Path(prepared)
    folder = _writable_folder()
    stale = [name for name in PROGRAMS if not _is_fresh(folder / name, PROGRAMS[name])]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if stale and compiler is None:
        if all((folder / name).exists() for name in PROGRAMS):
            return folder
        raise CheckSkipped("no C compiler (cc or gcc) to build the test targets with")
    for name in stale:
        _compile(str(compiler), folder / name, PROGRAMS[name])
    return folder


def _writable_folder() -> Path:
    beside = SOURCES / "bin"
    try:
        beside.mkdir(exist_ok=True)
        if os.access(beside, os.W_OK):
            return beside
    except OSError:
        pass  # A read-only installation: fall through.
    return Path(tempfile.mkdtemp(prefix="agentzip-targets-"))


def _is_fresh(binary: Path, sources: list[str]) -> bool:
    if not binary.exists():
        return False
    made = binary.stat().st_mtime
    inputs = [*(SOURCES / source for source in sources), *SOURCES.glob("*.h")]
    return all(source.stat().st_mtime < made for source in inputs)


def _compile(compiler: str, binary: Path, sources: list[str]) -> None:
    # Built under another name first: two runs at once must never execute half a program.
    unfinished = binary.with_name(f".{binary.name}.{os.getpid()}")
    command = [compiler, *_FLAGS, "-o", str(unfinished), *(str(SOURCES / s) for s in sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise CheckFailed(f"cannot compile {binary.name}: {done.stderr.strip()[-2000:]}")
    unfinished.replace(binary)

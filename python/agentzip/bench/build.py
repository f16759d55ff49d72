"""
Compiles the benchmark's own C programs.

Static, like the targets of the self-test, so that their mappings are few and known.  The self-test
has a builder for its own list of programs; the two packages are siblings and import nothing from
each other, and the C sources share `protocol.h` by path.
"""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from agentzip.errors import Unsupported

__all__ = ["PROGRAMS", "SOURCES", "ensure_built"]

SOURCES = Path(__file__).parent / "targets"
"""Where the C sources are."""

PROGRAMS = {"latency": ["latency.c", "floor.c"], "stopper": ["stopper.c", "floor.c"]}
"""Program name -> its sources."""

_FLAGS = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-static", "-pthread"]


@cache
def ensure_built() -> Path:
    """
    Compile what is missing or older than its sources; returns the folder of the programs.

    Raises:
        Unsupported: there is no compiler, or it refused a source.
    """
    folder = _writable_folder()
    newest = max(path.stat().st_mtime for path in SOURCES.glob("*.[ch]"))
    for name, sources in PROGRAMS.items():
        program = folder / name
        if not program.exists() or program.stat().st_mtime <= newest:
            _compile(program, sources)
    return folder


def _writable_folder() -> Path:
    beside = SOURCES / "bin"
    try:
        beside.mkdir(exist_ok=True)
        if os.access(beside, os.W_OK):
            return beside
    except OSError:
        pass  # A read-only installation: fall through.
    return Path(tempfile.mkdtemp(prefix="agentzip-bench-bin-"))


def _compile(program: Path, sources: list[str]) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Unsupported("no C compiler to build the benchmark with", "install gcc")
    # Built under another name first: two runs at once must never execute half a program.
    unfinished = program.with_name(f".{program.name}.{os.getpid()}")
    command = [compiler, *_FLAGS, "-o", str(unfinished), *(str(SOURCES / s) for s in sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise Unsupported(f"cannot compile {program.name}: {done.stderr.strip()[-2000:]}")
    unfinished.replace(program)

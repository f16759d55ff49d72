"""
The processes that the prebuilt dictionaries are made from.

A recipe runs one of `programs/` with generated data, where nothing of this machine can be seen: a
clean environment, a host name that says nothing, empty home and temporary folders.  The program
comes in over its standard input, so that no path of this checkout is in its memory, and says
`ready` when its memory is what an agent's would be.
"""

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agentzip.errors import InvalidSetting
from agentzip.host import processes
from agentzip.sandbox.memory import resident_bytes

__all__ = ["CLEAN_ENVIRONMENT", "RECIPES", "Recipe", "command_recipe"]

CLEAN_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108  (an empty file system of its own, see _STAGE)
    "LANG": "C.UTF-8",
}

_PROGRAMS = Path(__file__).parent / "programs"

# $1 is a folder to show as /usr/local, or nothing; the rest is the command.  The mounts are in a
# name space of their own and end with it.
_STAGE = """
set -e
hostname sandbox
if [ -n "$1" ]; then mount --bind "$1" /usr/local; fi
for folder in /tmp /root /home; do mount -t tmpfs -o size=512m none "$folder"; done
cd /tmp
shift
exec "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to start a process worth learning from, and which of its family to take."""

    name: str
    source: str
    """Whose pages these are, for the facts of the dictionary."""
    text: str
    """How it is told in the facts: the command, or the recipe's name."""
    command: Callable[[], list[str]]
    """Builds the command; raises if what it needs is not installed."""
    program: Path | None = None
    """What it gets on its standard input."""
    says_ready: bool = False
    """Whether it prints `ready`; else it is ready after a given time."""
    environment: dict[str, str] = field(default_factory=lambda: dict(CLEAN_ENVIRONMENT))
    choose: Callable[[int], int] = lambda pid: pid
    """Which process below the started one is learned from."""


def command_recipe(command: list[str], environment: dict[str, str] | None = None) -> Recipe:
    """A recipe from a command of the user: its largest process, a while after its start."""
    return Recipe(
        name=Path(command[0]).name,
        source="a process started for it by the user's own command",
        text=f"agentzip dict train -- {' '.join(command)}",
        command=lambda: command,
        environment=dict(CLEAN_ENVIRONMENT) if environment is None else environment,
        choose=_largest,
    )


def _staged(words: list[str], local: str = "") -> list[str]:
    if shutil.which("unshare") is None:
        raise InvalidSetting("unshare is not found", "install util-linux")
    # Nothing inside needs the network; without it nothing can tell where this is.
    return ["unshare", "--mount", "--uts", "--net", "sh", "-c", _STAGE, "sh", local, *words]


def _installed(*names: str) -> str:
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return found
    raise InvalidSetting(f"recipe needs a program that is not found: {names[0]}", "install it")


def _python() -> list[str]:
    # Asked, because what is on PATH may be a script of a version manager.
    ask = [_installed("python3.12"), "-I", "-c", "import sys; print(sys.base_prefix)"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidSetting(f"recipe needs a python3.12 that runs: {error}") from error
    folder = answer.stdout.strip()
    # An interpreter that somebody built for himself is shown where images have theirs, or the
    # path of every module would be of this machine.
    local = "" if folder in {"/usr", "/usr/local"} else folder
    shown = "/usr/local" if local else folder
    return _staged([f"{shown}/bin/python3.12", "-I", "-X", "utf8", "-"], local)


def _node() -> list[str]:
    return _staged([_installed("node", "nodejs"), "-"])


def _chromium() -> list[str]:
    browser = [
        *(_installed("chromium", "chromium-browser", "google-chrome"), "--headless"),
        *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"),
        *("--disable-breakpad", "--user-data-dir=/tmp/profile", "--enable-logging=stderr"),
    ]
    # The page comes in over the input and says `ready` on its console, which becomes stderr.
    script = 'cat >/tmp/page.html; exec "$@" file:///tmp/page.html'
    return _staged(["sh", "-c", script, "sh", *browser])


def _largest(pid: int) -> int:
    family = [pid, *(found.pid for found in processes.descendants(pid))]
    return max(family, key=resident_bytes)


def _renderer(pid: int) -> int:
    """The largest process of the browser that runs a page."""
    found = [p.pid for p in processes.descendants(pid) if "--type=renderer" in p.command]
    if not found:
        raise InvalidSetting("the browser has no process for a page", "see what it prints")
    return max(found, key=resident_bytes)


_GENERATED = (
    "generated by agentzip/training/programs; the process saw no home folder, no user data, "
    "no network and no name of the machine"
)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="python312",
            source=f"CPython 3.12 with parts of its standard library, and data {_GENERATED}",
            text="agentzip dict train --recipe python312",
            command=_python,
            program=_PROGRAMS / "python312.py",
            says_ready=True,
            # An interpreter that is shown at another place finds its own library by this.
            environment=CLEAN_ENVIRONMENT | {"LD_LIBRARY_PATH": "/usr/local/lib"},
            choose=_largest,
        ),
        Recipe(
            name="v8",
            source=f"Node with parts of its own modules, and data {_GENERATED}",
            text="agentzip dict train --recipe v8",
            command=_node,
            program=_PROGRAMS / "v8.js",
            says_ready=True,
            choose=_largest,
        ),
        Recipe(
            name="chromium",
            source=f"a page process of headless Chromium, and a page {_GENERATED}",
            text="agentzip dict train --recipe chromium",
            command=_chromium,
            program=_PROGRAMS / "chromium.html",
            says_ready=True,
            choose=_renderer,
        ),
    )
}
"""The recipes of the prebuilt dictionaries, by name."""

"""
A process that gives back what a killed bench cannot: control groups, files, zram, zswap, KSM.

It takes one thing, says that it has it, waits for the end of its stdin, and gives it back.  The
bench holds the other end of that pipe, so however the bench ends, the kernel closes it.

    python -m agentzip.bench.fanout.custody run FOLDER GROUP
    python -m agentzip.bench.fanout.custody zram BYTES
    python -m agentzip.bench.fanout.custody zswap BYTES FOLDER
    python -m agentzip.bench.fanout.custody ksm
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from agentzip.bench import zram
from agentzip.bench.encode.kernel_ways import ksm_scanning
from agentzip.bench.fanout.places import remove_tree
from agentzip.children import Child
from agentzip.errors import AgentZipError, InternalError

__all__ = ["Custody", "main", "zswap_why_not"]

_EMPTY_SECONDS = 60.0
"""How long the processes of an ended bench may take to go; what is left then is killed."""

_GIVE_BACK_SECONDS = 120.0
"""Longest wait for a thing to be given back: a swapoff brings pages home first."""

_ZSWAP = Path("/sys/module/zswap/parameters")
_ZSWAP_SETTINGS = {"enabled": "Y", "max_pool_percent": "50"}
"""A larger pool than by default, or pages would go to the disk and the peer would look slow."""

_KSM_PACE = {"pages_to_scan": "2000", "sleep_millisecs": "20"}
"""Some 100,000 pages a second: the sandboxes are looked at every few seconds, as an operator who
wants to gain anything within a wait would set it."""


class Custody(Child):
    """The process that has something in custody; leaving the context gives the thing back."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "agentzip.bench.fanout.custody", *words]
        pipe = subprocess.PIPE
        super().__init__(
            # A session of its own: Ctrl-C is for the bench, which then lets go of the pipe.
            subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline().decode().strip()
        if said != "ready":
            self.stop()
            raise InternalError(f"cannot take {' '.join(words[:1])}: {said or 'it ended'}")

    def stop(self) -> None:
        """Have it given back; a process that does not end in time is killed."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            if self.process.wait(_GIVE_BACK_SECONDS):
                raise InternalError("something was not given back: see the messages above")
        finally:
            super().stop()


def zswap_why_not(root: Path = Path("/")) -> str:
    """Why zswap cannot be measured now; empty if it can."""
    folder = root / _ZSWAP.relative_to("/")
    if not folder.is_dir():
        return "this kernel has no zswap"
    if (folder / "enabled").read_text().strip() != "N":
        return "zswap is in use"
    if len((root / "proc/swaps").read_text().splitlines()) > 1:
        return "another swap is active"
    return ""


@contextlib.contextmanager
def _zswap(bytes_max: int, folder: Path) -> Iterator[None]:
    """A swap file with zswap before it; both gone afterwards."""
    file = folder / "swapfile"
    former = {name: (_ZSWAP / name).read_text().strip() for name in _ZSWAP_SETTINGS}
    try:
        for command in (
            ["fallocate", "-l", str(bytes_max), str(file)],
            ["chmod", "600", str(file)],
            ["mkswap", str(file)],
            ["swapon", str(file)],
        ):
            subprocess.run(command, check=True, capture_output=True)
        for name, value in _ZSWAP_SETTINGS.items():
            (_ZSWAP / name).write_text(value)
        yield
    finally:
        subprocess.run(["swapoff", str(file)], check=False, capture_output=True)
        for name, value in former.items():
            (_ZSWAP / name).write_text(value)
        file.unlink(missing_ok=True)


@contextlib.contextmanager
def _run(folder: Path, group: Path) -> Iterator[None]:
    """The groups and files of a run."""
    try:
        yield
    finally:
        # The engine watches a pipe of its own, but an orphaned daemon goes on until it is told.
        for line in (group / "daemon" / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGTERM)
        if not remove_tree(group, _EMPTY_SECONDS):
            # Nothing else is ever put into this group.
            (group / "cgroup.kill").write_text("1")
            remove_tree(group, _EMPTY_SECONDS)
        # Whoever dies with the bench may be writing there until it is dead.
        deadline = time.monotonic() + _EMPTY_SECONDS
        while folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.02)


def _taken(words: list[str]) -> AbstractContextManager[None]:
    match words:
        case ["run", folder, group]:
            return _run(Path(folder), Path(group))
        case ["zram", size]:
            return zram.compressed_device(int(size))
        case ["zswap", size, folder]:
            return _zswap(int(size), Path(folder))
        case ["ksm"]:
            return ksm_scanning(_KSM_PACE)
    raise InternalError(f"nothing is taken so: {words}")


def main(arguments: list[str] | None = None) -> int:
    """Take, wait, give back."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        with _taken(sys.argv[1:] if arguments is None else arguments):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.read()
    except (AgentZipError, OSError, subprocess.CalledProcessError) as error:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(f"{error}\n")
            sys.stdout.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

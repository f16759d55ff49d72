"""Podman with storage and settings of its own, and what tests on container runtimes need."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["CALL_SECONDS", "Podman", "call", "needed_program", "short_folder"]

CALL_SECONDS = 40
"""How long one call of a runtime may take on a busy machine."""


def needed_program(name: str, why: str = "") -> str:
    """The path of a program; the test is skipped where there is none."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(why or f"no {name} on this host")
    return path


def call(*command: str, **options: object) -> str:
    """Run a command that must succeed; what it prints."""
    result = subprocess.run(  # type: ignore[call-overload]
        command, capture_output=True, text=True, timeout=CALL_SECONDS, check=False, **options
    )
    assert 0 == result.returncode, f"{command}: {result.stdout}{result.stderr}"
    return str(result.stdout)


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path podman does not find too long for its sockets."""
    with tempfile.TemporaryDirectory(prefix="az-") as folder:
        yield Path(folder)


class Podman:
    """
    Podman as if it were alone on the host.

    Args:
        folder: For its storage, settings and sockets.
    """

    def __init__(self, folder: Path) -> None:
        self._settings = folder / "containers.conf"
        runtime = needed_program("runc")
        self._settings.write_text(
            "[containers]\n"
            # Its default limits are above those that a container of ours may have.
            'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
            "[engine]\n"
            f'cgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "{runtime}"\n'
        )
        self._command = [
            *(needed_program("podman"), "--root", str(folder / "storage"), "--log-level", "error"),
            *("--runroot", str(folder / "run"), "--tmpdir", str(folder / "tmp")),
            *("--storage-driver", "vfs"),
        ]

    def __call__(self, *words: str) -> str:
        """Run one command; returns what it prints."""
        environment = {**os.environ, "CONTAINERS_CONF": str(self._settings)}
        return call(*self._command, *words, env=environment).strip()

"""
A disk that fails in the middle: cut short by a limit, by half a write, by an error of the device.

The errors are made in the C library of a process of its own, which is where the engine would get
them from: what the kernel says of a broken disk is one number.
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip import model
from agentzip.children import Child
from agentzip.errors import InvalidSetting
from agentzip.pager import open_engine
from agentzip.selftest.registry import CheckFailed
from agentzip.selftest.stage import Stage

_TOUCHED_MEANWHILE = 10

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_FAILING_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether the file is the swap file and the folder holds a sign of this name. */
static int is_told(const char *sign, int file)
{
    struct stat one, other;
    char path[4096];
    snprintf(path, sizeof path, "%s/swap", getenv("FAILING_DISK"));
    if (stat(path, &one) || fstat(file, &other) || one.st_ino != other.st_ino)
        return 0;
    snprintf(path, sizeof path, "%s/%s", getenv("FAILING_DISK"), sign);
    return access(path, F_OK) == 0;
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (is_told("no-writes", file)) {
        errno = EIO;
        return -1;
    }
    return real(file, data, is_told("half-writes", file) ? (size + 1) / 2 : size, offset);
}

ssize_t pread64(int file, void *data, size_t size, off64_t offset)
{
    ssize_t (*real)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pread64");
    if (is_told("no-reads", file)) {
        errno = EIO;
        return -1;
    }
    return real(file, data, is_told("half-reads", file) ? (size + 1) / 2 : size, offset);
}
"""

_HOST = """
import resource, sys
from pathlib import Path
from agentzip import model, pager
folder, pid = Path(sys.argv[1]), int(sys.argv[2])
engine = pager.open_engine(
    model.Settings(run_dir=folder / "run", disk_path=folder / "swap", disk_bytes_max=64 * 2**20)
)
engine.attach(pid)
print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "spill":
        engine.page_out(pid)
        report = engine.spill(pid)
        print(report.pages_spilled, engine.stats().pool_slots, report.stopped, flush=True)
    elif word == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        print("limited", flush=True)
    elif word == "no-limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("not limited", flush=True)
    elif word == "losses":
        print(engine.losses()[:1], flush=True)
    elif word == "end":
        print(engine.detach(pid).complete, flush=True)
engine.close()
"""
"""Says how many pages are on the disk, how many are not, and what stopped it."""


class _Host(Child):
    """An engine whose disk fails when it is told to."""

    def __init__(self, folder: Path, pid: int) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler for a disk that fails")
        source, library = folder / "failing.c", folder / "failing.so"
        source.write_text(_FAILING_DISK)
        command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        self._folder = folder
        super().__init__(
            subprocess.Popen(
                [sys.executable, "-c", _HOST, str(folder), str(pid)],
                env={**os.environ, "LD_PRELOAD": str(library), "FAILING_DISK": str(folder)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        assert self.process.stdout is not None
        # The disk works until the engine has its file.
        assert b"ready\n" == self.process.stdout.readline()

    def ask(self, word: str, *signs: str) -> str:
        """One thing, while the disk fails as the signs say."""
        for sign in signs:
            (self._folder / sign).touch()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode().strip()
        for sign in signs:
            (self._folder / sign).unlink()
        return answer

    def stop(self) -> None:
        """Let the engine close, so that its keeper ends as well."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        super().stop()


def test_a_swap_file_in_use_is_refused() -> None:
    """A second engine changes nothing of it; once the first is gone, the file is free."""
    bytes_max = 64 << 20
    with Stage() as stage:
        path = stage.folder / "swap"
        engine = stage.open(algorithm="zstd", disk_path=path, disk_bytes_max=bytes_max)
        target = stage.memory(4)
        stage.attach(target, "always")
        stage.page_out(target)
        assert engine.spill(target.pid).pages_spilled > 100
        second = model.Settings(
            run_dir=stage.folder / "2", disk_path=path, disk_bytes_max=bytes_max
        )
        before = path.read_bytes()
        with pytest.raises(InvalidSetting, match="in use"):
            open_engine(second)
        assert before == path.read_bytes()
        target.verify()
        engine.detach(target.pid)
        engine.close()

        # What is left in it belongs to a key that is gone.
        open_engine(second).close()


def test_a_file_with_other_data_is_not_emptied(tmp_path: Path) -> None:
    """A slip in `swap_out_path` must not cost anybody a file; an empty one is taken."""
    path = tmp_path / "thesis.tex"
    settings = model.Settings(run_dir=tmp_path / "run", disk_path=path, disk_bytes_max=1 << 20)
    for data in (b"x", b"once upon a time, in a land far away"):
        path.write_bytes(data)
        with pytest.raises(InvalidSetting, match="is not empty"):
            open_engine(settings)
        assert data == path.read_bytes()
    path.write_bytes(b"")
    open_engine(settings).close()


def test_a_write_that_fails_loses_nothing_and_is_tried_again_later() -> None:
    """Nothing is spilled, the reason is told; once the disk works again, all goes."""
    with Stage() as stage:
        target = stage.memory(8)
        with _Host(stage.folder, target.pid) as host:
            spilled, kept, why = host.ask("spill", "no-writes").split(maxsplit=2)
            target.verify()
            again, left, *_ = host.ask("spill").split(maxsplit=2)
            target.verify()
            assert "True" == host.ask("end")

        assert "0" == spilled
        assert int(kept) > 1000
        assert "Input/output error" in why
        assert int(again) > 1000
        # A page that came home between page out and spill keeps its slot.
        assert int(left) < _TOUCHED_MEANWHILE
        target.verify()


def test_half_a_write_and_half_a_read_are_gone_on_with() -> None:
    """The kernel may do less than it was asked for."""
    with Stage() as stage:
        target = stage.memory(8)
        with _Host(stage.folder, target.pid) as host:
            spilled, kept, *_ = host.ask("spill", "half-writes").split(maxsplit=2)
            (stage.folder / "half-reads").touch()
            target.verify()
            assert "True" == host.ask("end")

        assert int(spilled) > 1000
        assert "0" == kept
        target.verify()


def test_a_read_that_fails_is_a_bus_error_with_its_reason() -> None:
    """Never zeros, and nobody waits for ever."""
    with Stage() as stage:
        target = stage.memory(8)
        with _Host(stage.folder, target.pid) as host:
            host.ask("spill")
            (stage.folder / "no-reads").touch()

            with pytest.raises(CheckFailed):
                target.command("verify", 30)
            assert -signal.SIGBUS == target.wait(30)
            assert "Input/output error" in host.ask("losses")


def test_a_write_that_is_cut_short_loses_nothing() -> None:
    """A limit of the file's size in the middle of a record: the page stays, and may go later."""
    with Stage() as stage:
        target = stage.memory(8)
        with _Host(stage.folder, target.pid) as host:
            assert "limited" == host.ask("limit")
            spilled, kept, why = host.ask("spill").split(maxsplit=2)
            target.verify()
            assert "not limited" == host.ask("no-limit")
            again, left, *_ = host.ask("spill").split(maxsplit=2)
            target.verify()
            assert "True" == host.ask("end")

        assert "File too large" in why
        assert 0 < int(spilled) < int(again)
        assert int(kept) > 0
        # A page that came home between page out and spill keeps its slot.
        assert int(left) < _TOUCHED_MEANWHILE
        target.verify()

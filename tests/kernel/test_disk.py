"""
The disk tier on real processes: encrypted, verified, and never the reason for a wrong byte.
"""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentzip import model
from agentzip.errors import InvalidSetting
from agentzip.pager import Pager, open_engine
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.exact_languages import start_heap
from agentzip.selftest.registry import CheckFailed
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

pytestmark = pytest.mark.timeout(110)

MIB = 2**20

_NOISE = """
import ctypes, mmap, random, sys
memory = mmap.mmap(-1, int(sys.argv[1]) * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
kept = [random.Random(number).randbytes(4096) for number in range(int(sys.argv[1]))]
memory[:] = b"".join(kept)
print("ready 0", flush=True)
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
for line in sys.stdin:
    wrong = sum(memory[at * 4096 : at * 4096 + 4096] != page for at, page in enumerate(kept))
    print("bad" if wrong else "ok", wrong, flush=True)
"""
"""Holds pages that nothing shrinks, as many as it is told."""

_NOISE_PAGES = 512
_RECORD_BYTES = 17 * 256
"""What the record of such a page takes in the file."""


def _noise(stage: Stage) -> tuple[Target, list[tuple[int, int]]]:
    """The target, and where its pages of noise are."""
    target = stage.start(sys.executable, "-c", _NOISE, str(_NOISE_PAGES))
    start = int(target.read_line(20, "start"))
    return target, [(start, start + _NOISE_PAGES * 4096)]


def _open(stage: Stage, path: Path, most: int = 64 * MIB) -> Pager:
    return stage.open(algorithm="zstd", disk_path=path, disk_bytes_max=most)


def _spilled(stage: Stage, engine: Pager, target: Target) -> model.SpillReport:
    stage.attach(target, "always")
    stage.page_out(target)
    return engine.spill(target.pid)


def test_pages_come_back_from_the_disk() -> None:
    """By faults, by a page in, and by a detach; the pool holds nothing of them meanwhile."""
    with Stage() as stage:
        engine = _open(stage, stage.folder / "swap")
        target = start_heap(stage)
        report = _spilled(stage, engine, target)

        assert report.stopped == ""
        assert report.pages_spilled > 3000
        assert engine.stats().pool_slots == 0
        assert engine.stats().disk_bytes > 0
        assert {"disk", "same"} >= {row.codec for row in engine.census(target.pid)}
        target.verify()
        assert engine.stats().faults_disk > 1000
        stage.page_out(target)
        engine.spill(target.pid)
        engine.page_in(target.pid)
        target.verify()
        stage.page_out(target)
        stage.settle()


def test_a_forked_child_reads_the_same_records() -> None:
    """References count on the disk as in the pool."""
    with Stage() as stage:
        engine = _open(stage, stage.folder / "swap")
        target = stage.memory(16)
        _spilled(stage, engine, target)
        target.ok("fork-verify")
        target.verify()
        stage.settle()


def test_nothing_is_on_the_disk_in_clear() -> None:
    """A needle in the target's memory is in no file, at no offset."""
    needle = secrets.token_hex(16)
    program = f"import sys; x = [f'{needle}-{{n}}' for n in range(100000)]; print('up', flush=True)"
    with Stage() as stage:
        path = stage.folder / "swap"
        engine = _open(stage, path)
        command = ["python3", "-c", f"{program}\nsys.stdin.read()"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            try:
                assert child.stdout is not None
                child.stdout.readline()
                engine.attach(child.pid)
                engine.page_out(child.pid)
                assert engine.spill(child.pid).pages_spilled > 500
                assert engine.stats().disk_bytes > 100_000
                assert needle.encode() not in path.read_bytes()
                for file in stage.run_dir.iterdir():
                    if file.is_file():
                        assert needle.encode() not in file.read_bytes()
                assert engine.detach(child.pid).complete
            finally:
                child.kill()


@pytest.mark.parametrize("damage", ["tampered", "truncated", "exchanged"])
def test_a_damaged_record_is_a_bus_error_with_its_reason(damage: str) -> None:
    """Never the bytes of another page, never zeros."""
    with Stage() as stage:
        path = stage.folder / "swap"
        engine = _open(stage, path)
        target, place = _noise(stage)
        stage.attach(target, "always")
        engine.page_out(target.pid, place)
        assert _NOISE_PAGES == engine.spill(target.pid).pages_spilled
        whole = path.read_bytes()
        if damage == "truncated":
            os.truncate(path, 100)
        elif damage == "tampered":
            data = bytearray(whole)
            data[100::256] = bytes(byte ^ 1 for byte in data[100::256])
            path.write_bytes(bytes(data))
        else:
            # Equally long records in each other's places: each is genuine, none where it belongs.
            tag, records = whole[:256], whole[256:].ljust(_NOISE_PAGES * _RECORD_BYTES, b"\0")
            path.write_bytes(tag + records[_RECORD_BYTES:] + records[:_RECORD_BYTES])

        with pytest.raises(CheckFailed):
            target.command("verify", 20)

        wait_until(lambda: not target.alive(), 10)
        assert -signal.SIGBUS == target.wait(10)
        # Counted after the signal: by a thread that may have to wait for a processor.
        assert wait_until(lambda: engine.stats().pages_lost > 0, 5)
        assert "disk tier" in engine.losses()[0]


def test_a_full_disk_loses_nothing() -> None:
    """ENOSPC on a file system of 2 MiB: what does not fit stays in the pool."""
    with Stage() as stage:
        place = stage.folder / "small"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        if mounted.returncode:
            pytest.skip(f"cannot mount a file system here: {mounted.stderr.strip()}")
        try:
            engine = _open(stage, place / "swap")
            target = start_heap(stage)
            report = _spilled(stage, engine, target)

            assert "No space left" in report.stopped
            assert engine.stats().pool_slots > 0
            target.verify()
            stage.settle()
        finally:
            stage.stop()
            # An engine that has not been collected yet holds its swap file open.
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_swap_file_loses_nothing() -> None:
    """`disk_bytes_max` is a hard cap of the file."""
    with Stage() as stage:
        path = stage.folder / "swap"
        engine = _open(stage, path, MIB)
        target = start_heap(stage)
        report = _spilled(stage, engine, target)

        assert report.stopped == "the swap file is full"
        assert path.stat().st_size <= MIB
        target.verify()
        stage.settle()


def test_a_path_that_cannot_be_a_swap_file_is_refused() -> None:
    """By name, before anything is served."""
    with Stage() as stage:
        link = stage.folder / "link"
        link.symlink_to("/dev/null")
        for path in (stage.folder, Path("/dev/null"), link, stage.folder / "no" / "where"):
            settings = model.Settings(
                run_dir=stage.run_dir, disk_path=path, disk_bytes_max=64 * MIB
            )
            with pytest.raises(InvalidSetting, match="disk_path"):
                open_engine(settings)


def test_without_a_swap_file_a_spill_is_refused() -> None:
    """The message says what is missing."""
    with Stage() as stage:
        engine = stage.open()
        target = stage.memory(1)
        stage.attach(target)
        with pytest.raises(InvalidSetting, match="swap file"):
            engine.spill(target.pid)
        stage.settle()

"""
What there is of ours in a target: one empty mapping while it is attached, nothing afterwards.
"""

import hashlib
import os
import sys
from pathlib import Path

import pytest

from agentzip.selftest.conditions import assert_free
from agentzip.selftest.exact_languages import start_heap
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]

_SYSCTLS = (
    "vm/unprivileged_userfaultfd",
    "kernel/yama/ptrace_scope",
    "kernel/perf_event_paranoid",
    "vm/overcommit_memory",
    "vm/swappiness",
    "fs/suid_dumpable",
)
"""Protections that programs of this kind like to loosen."""

_STATUS = ("CapEff", "Groups", "NoNewPrivs", "Seccomp", "ShdPnd", "SigBlk", "SigCgt", "SigPnd")
"""What of a target's status borrowing a thread could change."""

_SEEKER = """
import ctypes, os, sys
held = [bytearray(os.urandom(2000) * 2) for _ in range(2000)]
print("ready 0", flush=True)
for line in sys.stdin:
    # Every number that could be a descriptor, whatever /proc says.
    found = []
    for number in range(4096):
        try:
            found.append((number, os.readlink(f"/proc/self/fd/{number}")))
        except OSError:
            pass
    stranger = [entry for entry in found if "userfaultfd" in entry[1] or "agentzip" in entry[1]]
    print("ok", stranger, flush=True)
"""
"""A target that looks for descriptors of ours in itself."""


def _maps(pid: int) -> bytes:
    return Path(f"/proc/{pid}/maps").read_bytes()


def _descriptors(pid: int) -> list[tuple[str, str]]:
    folder = Path(f"/proc/{pid}/fd")
    return sorted((entry.name, os.readlink(entry)) for entry in folder.iterdir())


def _status(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    # Who is ended first when memory is short is nothing of ours to decide.
    victim = Path(f"/proc/{pid}/oom_score_adj").read_text()
    return [victim, *(line for line in lines if line.startswith(_STATUS))]


def _code(pid: int) -> dict[str, str]:
    """What every executable mapping holds: the springboard is gone as soon as it was used."""
    found = {}
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in _maps(pid).decode().splitlines():
            place, protection = line.split()[:2]
            if "x" in protection and not line.endswith("[vsyscall]"):
                start, end = (int(part, 16) for part in place.split("-"))
                data = os.pread(memory.fileno(), end - start, start)
                found[place] = hashlib.sha256(data).hexdigest()
    return found


def _sysctls() -> dict[str, bytes]:
    paths = [Path("/proc/sys") / name for name in _SYSCTLS]
    return {str(path): path.read_bytes() for path in paths if path.exists()}


_Seen = tuple[bytes, list[tuple[str, str]], list[str], dict[str, str], dict[str, bytes]]


def _seen(pid: int) -> _Seen:
    return _maps(pid), _descriptors(pid), _status(pid), _code(pid), _sysctls()


def _covered(maps: bytes) -> set[tuple[int, int, bytes]]:
    """Each page-aligned address that is mapped, as runs of one protection and file."""
    runs: list[tuple[int, int, bytes]] = []
    for line in maps.splitlines():
        place, kind = line.split(maxsplit=1)
        start, end = (int(part, 16) for part in place.split(b"-"))
        protection, _, device, rest = kind.split(maxsplit=3)
        what = b" ".join((protection, device, rest))
        if runs and runs[-1][1:] == (start, what):
            runs[-1] = (runs[-1][0], end, what)
        else:
            runs.append((start, end, what))
    return set(runs)


@pytest.mark.parametrize("language", ["c", "python"])
def test_an_attached_target_holds_no_descriptor_and_a_detached_one_is_as_before(
    language: str,
) -> None:
    """Same descriptors and code, and one mapping more; afterwards the maps agree byte by byte."""
    with Stage() as stage:
        target = stage.memory(8) if language == "c" else start_heap(stage)
        before = _seen(target.pid)
        for _ in range(3):
            stage.attach(target, "always")
            attached = _seen(target.pid)
            stage.page_out(target)
            out = _seen(target.pid)
            assert stage.bytes_out(target) > 0
            assert stage.detach(target).complete
            stage.forget(target)

            # Registered ranges may split a mapping; together they cover what they covered.
            assert _covered(attached[0]) == _covered(out[0])
            assert set() == _covered(before[0]) - _covered(attached[0])
            ((_, _, staging),) = _covered(attached[0]) - _covered(before[0])
            # Pages pass through it on their way out: its own memory, and no file or device.
            assert b"rw-p 00:00 0" == staging.strip()
            assert before[1:] == attached[1:] == out[1:]
            assert before == _seen(target.pid)
        assert_free(target.pid)
        target.verify()


def test_a_target_that_looks_for_our_descriptor_finds_none() -> None:
    """By number, from inside, before, during and after."""
    with Stage() as stage, Target([sys.executable, "-c", _SEEKER], verify="") as target:
        stage.open()
        found = [target.ok("seek")]
        stage.engine.attach(target.pid)
        stage.page_out(target)
        found.append(target.ok("seek"))
        assert stage.detach(target).complete
        found.append(target.ok("seek"))

        assert ["[]"] * 3 == found

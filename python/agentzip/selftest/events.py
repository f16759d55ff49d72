"""
The event matrix: everything is out, then the program does one thing to its memory.

The operations themselves are in `targets/events*.c`, which also know what every page must hold
before and after.  Here is which of them there are, and that the region really was out (or really
was left alone) when the operation began.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agentzip.selftest.exact_memory import expect
from agentzip.selftest.registry import add, check
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

__all__ = ["OPERATIONS"]

OPERATIONS = {
    # Changes of the address space.
    "mremap-grow": "A mapping grows in place.",
    "mremap-maymove": "A mapping grows and has to move.",
    "mremap-fixed": "A mapping moves to a given place.",
    "mremap-over": "A mapping moves over another one that is out as well.",
    "mremap-dontunmap": "A mapping moves and leaves an empty one behind.",
    "mremap-shrink": "A mapping shrinks.",
    "munmap-mmap": "A mapping goes and a new one comes at the same place.",
    "munmap-middle": "The middle of a mapping goes.",
    "map-fixed-anonymous": "New memory is mapped over the middle.",
    "map-fixed-file": "A file is mapped over the middle.",
    "map-fixed-none": "The middle is replaced by inaccessible memory, then opened.",
    "dontneed": "The program drops pages; they read as zeros.",
    "free": "The program frees pages lazily.",
    "mprotect-read": "A range becomes read-only and writable again.",
    "mprotect-none": "A range becomes inaccessible and comes back.",
    "mlock": "A range is locked and unlocked.",
    "populate-read": "The program populates a range for reading.",
    "populate-write": "The program populates a range for writing.",
    "collapse": "The program asks for huge pages at once.",
    "pageout": "The program pages its own memory out.",
    "brk-shrink": "The heap shrinks over pages that are out and grows again.",
    "sparse": "Pages that were never there are touched between ones that are out.",
    # New processes.
    "fork": "A child sees what its parent had, and its writes stay its own.",
    "fork-grandchild": "A grandchild sees the same.",
    "fork-orphan": "A grandchild whose parent is gone sees the same.",
    "fork-then-drop": "What the parent drops after the fork stays in the child.",
    "fork-many": "Eight children at once.",
    "vfork": "A child that borrows the memory reads it.",
    "posix-spawn": "Another program is started.",
    "exec-in-child": "A child becomes another program.",
    "dontfork": "A range that children must not have.",
    "wipeonfork": "A range that children must see as zeros.",
    # The kernel reads and writes.
    "read-into": "read(2) into pages that are out.",
    "write-from": "pwrite(2) from pages that are out.",
    "pread-middle": "A few bytes into the middle of each page.",
    "readv-scatter": "One call that scatters over many pages.",
    "direct-read": "O_DIRECT into pages that are out.",
    "direct-write": "O_DIRECT from pages that are out.",
    "io-uring-read": "io_uring reads into pages that are out.",
    "io-uring-write": "io_uring writes from pages that are out.",
    "io-uring-register": "Pages that are out become a registered buffer.",
    "io-uring-pinned": "A buffer that was registered before stays where it is.",
    "vmsplice": "Pages that are out go into a pipe.",
    "vmsplice-held": "Pages in a pipe keep their content while their owner is paged out.",
    "external-read": "A third process reads with process_vm_readv.",
    # Memory with a meaning.
    "guard": "Guard pages inside a mapping still fault.",
    "huge": "Huge pages.",
    "stack-growth": "The main stack grows deep.",
    "thread-stack": "A thread's stack is out while it sleeps in it.",
    "signal-stack": "A signal is delivered on an alternate stack that is out.",
    "futex": "A thread sleeps on a word that is out.",
    "secret": "Secret memory is left alone.",
    "shared-memfd": "Shared memory is left alone.",
    "private-memfd": "Private pages of a memory file are left alone.",
    "shared-file": "A shared file mapping is left alone.",
    "private-file": "Written pages of a private file mapping are left alone.",
    "shared-anonymous": "Shared anonymous memory is left alone.",
    "shared-sysv": "System V shared memory is left alone.",
    "read-only": "A read-only range is left alone.",
    "locked": "Locked memory is left alone.",
    "dontdump": "Memory that the program keeps out of core dumps is left alone.",
    "protection-key": "Memory guarded by a protection key stays, and what is around it leaves.",
    "protection-key-late": "A key set on memory that is out protects it before it is home.",
    "own-userfaultfd": "A range that the program's own fault handler serves is left alone.",
}
"""Operation -> what the check is about."""

_MOSTLY = 0.75
"""The part of a region that must be out: a page or two may be touched by the program itself."""


def _start(stage: Stage, *names: str) -> Target:
    return stage.start(stage.program("events"), "--dir", str(stage.folder), *names)


def _range(target: Target, name: str) -> tuple[int, int]:
    start, end = target.ok(f"where {name}").split("-")
    return int(start, 16), int(end, 16)


def _expect_place(stage: Stage, target: Target, name: str, leaves: str) -> None:
    """The region is out, or was left alone, as its operation demands."""
    start, end = _range(target, name)
    out = stage.bytes_out(target, start, end)
    if leaves == "y":
        expect(out >= _MOSTLY * (end - start), f"only {out} of {end - start} bytes are out")
    elif leaves == "n":
        expect(out == 0, f"{out} bytes are out that must stay")


def _leaves(target: Target) -> dict[str, str]:
    pairs = (word.split(":") for word in target.ok("list").split())
    return dict(pairs)


def _perform(stage: Stage, target: Target, name: str) -> None:
    if name == "external-read":
        _read_from_outside(target)
    target.ok(name)
    # Whatever the operation left must survive another round.
    stage.page_out(target)
    target.verify()


def _read_from_outside(target: Target) -> None:
    address, length, checksum = target.ok("expected external-read").split()
    reader = subprocess.run(
        [
            *(sys.executable, "-m", "agentzip.selftest.outside_reader"),
            *(str(target.pid), address, length),
        ],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    expect(reader.stdout.strip() == checksum, f"read from outside: {reader.stdout}{reader.stderr}")


def _operation(name: str) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        target = _start(stage, name)
        leaves = _leaves(target)[name]
        stage.attach(target, "when asked")
        stage.page_out(target)
        _expect_place(stage, target, name, leaves)
        _perform(stage, target, name)

    return run


for _name, _title in OPERATIONS.items():
    add(f"events/{_name}", _title, _operation(_name), 45.0)


@check("events/guard-at-home")
def guard_at_home(stage: Stage) -> None:
    """Guard pages still fault after everything was brought home in one go."""
    target = _start(stage, "guard")
    stage.attach(target)
    stage.page_out(target)
    _expect_place(stage, target, "guard", "y")
    stage.engine.page_in(target.pid)
    expect(stage.bytes_out(target) == 0, "not everything is at home")
    target.ok("guard")


@check("events/protection-key-reason")
def protection_key_reason(stage: Stage) -> None:
    """Memory guarded by a key is skipped with that reason; its neighbours are out."""
    target = _start(stage, "protection-key")
    stage.attach(target, "when asked")
    stage.page_out(target)
    start, end = _range(target, "protection-key")
    parts = [
        region
        for region in stage.engine.regions(target.pid)
        if start < region.end and region.start < end
    ]
    # Says first whether this host has keys at all.
    target.ok("protection-key")
    guarded = [region for region in parts if "protection key" in region.reason]
    expect(len(guarded) == 1, f"guarded mappings: {guarded} of {parts}")
    expect(not guarded[0].movable, f"it may leave: {guarded[0]}")
    expect(guarded[0].out_bytes == 0, f"guarded memory is out: {guarded[0]}")
    around = sum(region.out_bytes for region in parts)
    half = (end - start) // 2
    expect(around >= _MOSTLY * half, f"only {around} of {half} bytes around it are out")
    stage.page_out(target)


@check("events/all-in-one", 120)
def all_in_one(stage: Stage) -> None:
    """All operations in one process, one after the other, everything out before each."""
    target = _start(stage)
    known = _leaves(target)
    expect(set(known) == set(OPERATIONS), f"the lists differ: {set(known) ^ set(OPERATIONS)}")
    stage.attach(target, "when asked")
    for name in known:
        stage.page_out(target)
        if name == "external-read":
            _read_from_outside(target)
        answer = target.command(name)
        expect(answer.split(" ", 1)[0] in {"ok", "skip"}, f"{name}: {answer}")
    stage.page_out(target)
    target.verify()


@check("events/command-line-readable")
def command_line_readable(stage: Stage) -> None:
    """Command line and environment can be read from outside while everything is out."""
    target = _start(stage, "fork")
    folder = Path("/proc") / str(target.pid)
    before = [(folder / name).read_bytes() for name in ("cmdline", "environ")]
    stage.attach(target)
    stage.page_out(target)
    after = [(folder / name).read_bytes() for name in ("cmdline", "environ")]
    expect(before == after, f"read from outside: {after[0]!r}")
    expect(after[0].count(b"\0") >= 3, f"the command line is short: {after[0]!r}")

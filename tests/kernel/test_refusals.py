"""
What the pager refuses, and how: each refusal has its own error and leaves the process as it was.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip import errors, model, pager
from agentzip.errors import (
    AgentZipError,
    AlreadyAttached,
    AlreadyRunning,
    AlreadyTraced,
    KernelThread,
    NoSuchProcess,
    NotAttached,
    NotPermitted,
    OwnProcess,
    PidReused,
    TargetGone,
    TargetsRemain,
    WrongArchitecture,
)
from agentzip.selftest.conditions import Snapshot, assert_same, snapshot, wait_until
from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(60)

_NOBODY = 65534
_KTHREADD = 2
"""The parent of all kernel threads has this pid on every Linux."""

_SEIZER = """
import ctypes, sys
pid = int(sys.argv[1])
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
PTRACE_SEIZE = 0x4206
print("seized" if ptrace(PTRACE_SEIZE, pid, None, None) == 0 else ctypes.get_errno(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(name="stage")
def _stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.fixture(name="sleeper")
def _sleeper() -> Iterator[int]:
    """An ordinary process that does nothing."""
    child = subprocess.Popen(["sleep", "60"])
    wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", 2)
    yield child.pid
    child.kill()
    child.wait(10)


def _refused(stage: Stage, pid: int, error: type[AgentZipError], start_time: int | None) -> str:
    """Both ways to ask are refused alike; returns the message of the attach."""
    if start_time is None:
        with pytest.raises(error):
            pager.describe(pid)
    with pytest.raises(error) as caught:
        stage.engine.attach(pid, start_time)

    assert [] == stage.engine.spaces()
    assert caught.value.exit_code == error.exit_code
    return str(caught.value)


def test_each_cause_has_an_exit_code_of_its_own() -> None:
    """No two errors end the command line alike, and none as if nothing had happened."""
    kinds = [getattr(errors, name) for name in errors.__all__ if name != "AgentZipError"]
    codes = [kind.exit_code for kind in kinds]

    assert sorted(set(codes)) == sorted(codes)
    assert 0 not in codes


def test_a_pid_without_a_process_is_refused(stage: Stage) -> None:
    """A pid that nobody has is named in the message."""
    child = subprocess.Popen(["true"])
    child.wait(10)

    assert str(child.pid) in _refused(stage, child.pid, NoSuchProcess, None)


def test_a_zombie_is_refused(stage: Stage) -> None:
    """A process that has ended but was not waited for has no memory to move."""
    child = subprocess.Popen(["true"])
    wait_until(lambda: ") Z " in Path(f"/proc/{child.pid}/stat").read_text(), 2)
    try:
        with pytest.raises((NoSuchProcess, TargetGone)):
            stage.engine.attach(child.pid)
    finally:
        child.wait(10)


def test_a_reused_pid_is_refused(stage: Stage, sleeper: int) -> None:
    """A pid with another start time than the caller knew is another process."""
    known = pager.describe(sleeper)

    _refused(stage, sleeper, PidReused, known.start_time - 1)
    stage.engine.attach(sleeper, known.start_time)
    stage.engine.detach(sleeper)


def test_without_permission_it_is_refused(sleeper: int) -> None:
    """An unprivileged caller is told that it is not permitted, by that error."""
    pager.describe(sleeper)  # The native module must be loaded before the rights are gone.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        name = "nothing"
        try:
            pager.describe(sleeper)
        except BaseException as error:  # noqa: BLE001 - its name is the result
            name = type(error).__name__
        os.write(writer, name.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)

    assert NotPermitted.__name__ == os.read(reader, 100).decode()
    os.close(reader)


def test_a_traced_process_is_refused(stage: Stage, sleeper: int) -> None:
    """The message names the tracer; both it and its target go on undisturbed."""
    with subprocess.Popen(
        [sys.executable, "-c", _SEIZER, str(sleeper)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "seized\n"

        message = _refused(stage, sleeper, AlreadyTraced, None)

        assert str(tracer.pid) in message
        assert tracer.poll() is None
    assert "S" == _state(sleeper)


def test_a_process_under_strace_is_refused(stage: Stage, sleeper: int) -> None:
    """The same with the tracer that people really use."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace on this host")
    with subprocess.Popen([strace, "-qq", "-p", str(sleeper)], stderr=subprocess.DEVNULL) as tracer:
        traced = f"TracerPid:\t{tracer.pid}"
        assert wait_until(lambda: traced in Path(f"/proc/{sleeper}/status").read_text(), 5)

        _refused(stage, sleeper, AlreadyTraced, None)

        tracer.send_signal(signal.SIGINT)
        tracer.wait(10)
    # It goes back into its call, which may take a moment.
    assert wait_until(lambda: _state(sleeper) == "S", 5)


def test_ourselves_are_refused(stage: Stage) -> None:
    """Neither the process of the engine nor its keeper can be a target."""
    _refused(stage, os.getpid(), OwnProcess, None)
    with pytest.raises(OwnProcess):
        stage.engine.attach(stage.engine.stats().keeper_pid)


def test_a_kernel_thread_is_refused(stage: Stage) -> None:
    """A kernel thread has no user memory."""
    if not _is_kernel_thread(_KTHREADD):
        pytest.skip("kernel threads are not visible from this pid namespace")

    _refused(stage, _KTHREADD, KernelThread, None)


def test_a_32_bit_program_is_refused(stage: Stage) -> None:
    """A program of another architecture runs on untouched."""
    program = stage.folder / "tiny32"
    program.write_bytes(_tiny_elf32())
    program.chmod(0o755)
    try:
        child = subprocess.Popen([program])
    except OSError as error:
        pytest.skip(f"this kernel does not run 32-bit programs: {error}")
    try:
        wait_until(lambda: _state(child.pid) == "S", 2)

        _refused(stage, child.pid, WrongArchitecture, None)

        assert child.poll() is None
    finally:
        child.kill()
        child.wait(10)


def test_a_second_attach_is_refused(stage: Stage) -> None:
    """Attaching twice changes nothing; the target is served as before."""
    target = stage.memory(4)
    stage.attach(target)
    stage.page_out(target)

    with pytest.raises(AlreadyAttached):
        stage.engine.attach(target.pid)

    target.verify()
    stage.settle()


def test_an_unknown_target_is_refused(stage: Stage, sleeper: int) -> None:
    """Nothing can be done with a process that was not attached."""
    for call in (stage.engine.page_out, stage.engine.page_in, stage.engine.detach):
        with pytest.raises(NotAttached):
            call(sleeper)


def test_a_second_engine_on_a_run_directory_is_refused(stage: Stage) -> None:
    """One run directory has one engine; the first one is not disturbed."""
    target = stage.memory(4)
    stage.attach(target)
    stage.page_out(target)

    with pytest.raises(AlreadyRunning):
        pager.open_engine(model.Settings(run_dir=stage.run_dir))

    target.verify()
    stage.settle()


def test_closing_with_targets_is_refused(stage: Stage) -> None:
    """An engine that still holds pages of somebody does not close."""
    target = stage.memory(4)
    stage.attach(target)
    stage.page_out(target)

    with pytest.raises(TargetsRemain):
        stage.engine.close()

    target.verify()
    stage.settle()


def test_a_stopped_process_stays_stopped(stage: Stage) -> None:
    """A process that job control has stopped is not woken by us, whatever we answer."""
    target = stage.memory(4)
    before = snapshot(target.pid)
    os.kill(target.pid, signal.SIGSTOP)
    assert wait_until(lambda: _state(target.pid) == "T", 2)
    attached = False
    try:
        stage.engine.attach(target.pid)
        attached = True
        stage.engine.page_out(target.pid)
    except AgentZipError as refusal:
        print(f"refused: {refusal}")
    # A moment in which a process that was wrongly woken would show it.
    time.sleep(0.2)

    assert "T" == _state(target.pid)
    os.kill(target.pid, signal.SIGCONT)
    target.verify()
    if attached:
        stage.engine.detach(target.pid)
    _assert_untouched(before, target.pid)


def _assert_untouched(before: Snapshot, pid: int) -> None:
    assert_same(before, snapshot(pid))


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _is_kernel_thread(pid: int) -> bool:
    """Field 9 of /proc/PID/stat holds the flags of the task; PF_KTHREAD is 0x200000."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return False
    return bool(int(fields[6]) & 0x200000)


class _Header32(ctypes.LittleEndianStructure):
    """`Elf32_Ehdr` behind its identification, followed by one `Elf32_Phdr`."""

    _pack_ = 1
    _fields_ = (
        *((name, ctypes.c_uint16) for name in ("type", "machine")),
        *((name, ctypes.c_uint32) for name in ("version", "entry", "phoff", "shoff", "flags")),
        *(
            (name, ctypes.c_uint16)
            for name in ("ehsize", "phentsize", "phnum", "shentsize", "shnum", "shstrndx")
        ),
        *(
            (f"p_{name}", ctypes.c_uint32)
            for name in ("type", "offset", "vaddr", "paddr", "filesz", "memsz", "flags", "align")
        ),
    )


def _tiny_elf32() -> bytes:
    """A static i386 program of a few bytes that calls pause(2) for ever."""
    # mov eax, 29 (pause); int 0x80; jmp back to the start.
    code = bytes.fromhex("b81d000000 cd80 ebf7")
    identification = b"\x7fELF\x01\x01\x01" + bytes(9)
    base, size = 0x08048000, len(identification) + ctypes.sizeof(_Header32)
    header = _Header32(
        *(2, 3, 1, base + size, 52, 0, 0),
        *(52, 32, 1, 0, 0, 0),
        *(1, 0, base, base, size + len(code), size + len(code), 5, 0x1000),
    )
    return identification + bytes(header) + code

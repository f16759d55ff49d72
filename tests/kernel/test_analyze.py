"""
What `analyze` predicts from outside is what a page out then reaches, and nobody notices the look.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agentzip import accounting, model, pager
from agentzip.cli import main
from agentzip.cli.analysis import readings_of
from agentzip.errors import KernelThread, NoSuchProcess, NotPermitted, OwnProcess, TargetGone
from agentzip.host.memory import memory_use
from agentzip.policy import analysis
from agentzip.selftest.build import SOURCES
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path("/dev/userfaultfd").exists(),
        reason="needs root and /dev/userfaultfd",
    ),
]

_NOBODY = 65534
_KTHREADD = 2
_ERROR_MAX = 0.15
_STEPS = 200


@pytest.fixture(name="stage")
def _stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.fixture(name="sleeper")
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """An ordinary process that does nothing."""
    child = subprocess.Popen(["sleep", "60"])
    wait_until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", 2)
    yield child
    child.kill()
    child.wait(10)


@contextmanager
def _program(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that has printed its first line."""
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    child.stdout.readline()
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def _python(stage: Stage) -> Target:
    return stage.start(sys.executable, str(SOURCES / "heap.py"), "3")


def _node(stage: Stage) -> Target:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this host")
    # A copy: another test's node would share the file's pages, and halve what they count for.
    own = str(shutil.copy(node, stage.run_dir / "node"))
    return stage.start(own, str(SOURCES / "heap.js"), "7")


def _memory(stage: Stage) -> Target:
    return stage.memory(64)


def _reached(stage: Stage, target: Target) -> tuple[accounting.Gain, model.PageOutReport]:
    """Page a target out and account for it, without the memory of the test itself."""
    before = memory_use(target.pid)
    stage.attach(target, "always")
    report = stage.page_out(target)
    after, stats = memory_use(target.pid), stage.engine.stats()
    gain = accounting.gain(
        baseline_rss=[before.rss],
        baseline_pss=[before.pss],
        after_pss=[after.pss],
        pool_bytes=stats.pool_bytes,
        table_bytes=stats.table_bytes,
        overhead_bytes=0,
        available_before=0,
        available_after=0,
    )
    return gain, report


@pytest.mark.parametrize("algorithm", ["zstd", "lz4"])
@pytest.mark.parametrize("start", [_python, _memory, _node])
def test_what_is_predicted_is_reached(
    stage: Stage, start: Callable[[Stage], Target], algorithm: str
) -> None:
    """The ratio, the pool's memory and what stays, each within 15 %."""
    stage.open(algorithm=algorithm)
    target = start(stage)
    target.verify()
    level = 3 if algorithm == "zstd" else 0
    found = pager.analyze(target.pid, algorithm=algorithm, level=level)
    verdict = analysis.judge(readings_of(found), analysis.HostLoad())

    gain, report = _reached(stage, target)

    print(
        f"{start.__name__} {algorithm}: ratio {verdict.ratio:.3f} predicted, {gain.ratio:.3f} "
        f"reached; pool {verdict.pool_bytes} and {gain.pool_bytes}; stays {verdict.stays_bytes} "
        f"and {gain.after_pss_bytes}; tables {verdict.table_bytes} and {gain.table_bytes}; "
        f"pages {sum(row.pages for row in found.classes)} and {report.pages_stored}; "
        f"with dictionary {verdict.ratio_dictionary}; cpu {found.cpu_us:.0f} us"
    )
    assert verdict.ratio == pytest.approx(gain.ratio, rel=_ERROR_MAX)
    assert verdict.pool_bytes == pytest.approx(gain.pool_bytes, rel=_ERROR_MAX)
    target.verify()
    stage.settle()


def test_a_dictionary_gains_what_was_predicted(stage: Stage) -> None:
    """The warm tier of a Python heap: trained, recoded, compared with the held-out half."""
    stage.open(algorithm="zstd")
    target = _python(stage)
    found = pager.analyze(target.pid)
    assert found.dictionary_bytes > 0
    _, report = _reached(stage, target)
    training = stage.engine.train(target.pid, pages_max=2_000)

    stage.engine.recode(target.pid, tier="warm", dictionary_id=training.id)

    stored = next(space for space in stage.engine.spaces() if space.pid == target.pid).bytes_pool
    predicted = found.pool_bytes_dictionary / found.pool_bytes
    print(f"with a dictionary {predicted:.3f} predicted, {stored / report.bytes_stored:.3f}")
    assert predicted == pytest.approx(stored / report.bytes_stored, rel=_ERROR_MAX)
    stage.engine.drop_dictionary(training.id)
    stage.settle()


def test_the_process_is_not_touched(stage: Stage) -> None:
    """No stop, no tracer, no page fault, and every page is where it was."""
    target = _memory(stage)
    target.verify()
    asleep = "State: S (sleeping)"
    assert wait_until(lambda: asleep in _lines(target.pid, "State"), 5)
    seen: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.update(_lines(target.pid, "State", "TracerPid"))

    before, faults = memory_use(target.pid), _faults(target.pid)
    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(5):
        pager.analyze(target.pid)
    done.set()
    watcher.join(10)

    assert {asleep, "TracerPid: 0"} == seen
    assert faults == _faults(target.pid)
    assert before.rss == memory_use(target.pid).rss
    target.verify()


def test_what_stays_is_named(stage: Stage, tmp_path: Path) -> None:
    """Locked, shared and file memory are not ours to move, and the report says how much of each."""
    file = tmp_path / "file"
    file.write_bytes(os.urandom(4 << 20))
    code = (
        "import ctypes, mmap, sys\n"
        "size = 8 << 20\n"
        "locked, shared = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE), mmap.mmap(-1, size)\n"
        "for area in (locked, shared):\n"
        "    area.write(b'x' * size)\n"
        "place = ctypes.addressof(ctypes.c_char.from_buffer(locked))\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.mlock(ctypes.c_void_p(place), ctypes.c_size_t(size)) == 0\n"
        "source = open(sys.argv[1], 'rb')\n"
        "file = mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ)\n"
        "sum(file[::4096])\n"
        "print('ready 1', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    target = stage.start(sys.executable, "-c", code, str(file), verify="")

    found = pager.analyze(target.pid)

    stays = {stay.reason.split(":")[0]: stay.resident_bytes for stay in found.stays}
    assert stays["locked in memory by the program"] >= 8 << 20
    assert stays["shared"] >= 8 << 20
    assert stays["file pages"] >= 4 << 20
    assert found.rss_bytes == sum(row.resident_bytes for row in found.classes)
    movable = sum(row.movable_bytes for row in found.classes)
    assert found.rss_bytes == movable + sum(stay.resident_bytes for stay in found.stays)
    assert "no" == analysis.judge(readings_of(found), analysis.HostLoad()).decision


def test_refusals_are_those_of_an_attach(sleeper: subprocess.Popen[bytes]) -> None:
    """No process, a kernel thread, ourselves, somebody else's: each has its own error."""
    gone = subprocess.Popen(["true"])
    gone.wait(10)

    for pid, error in (
        (gone.pid, NoSuchProcess),
        (_KTHREADD, KernelThread),
        (os.getpid(), OwnProcess),
    ):
        with pytest.raises(error, match=str(pid)):
            pager.analyze(pid)
    assert NotPermitted.__name__ == _as_nobody(sleeper.pid)


def test_a_process_that_ends_meanwhile_is_an_error() -> None:
    """Wherever the end falls, the answer is a whole analysis or says that it is gone."""
    endings: set[str] = set()
    code = "data = [str(n) for n in range(200_000)]; print(1, flush=True); input()"
    deadline = time.monotonic() + 30
    for step in range(_STEPS):
        with _program(code) as child:
            killer = threading.Timer(0.004 * (step % 20), child.kill)
            killer.start()
            try:
                found = pager.analyze(child.pid)
                endings.add("whole")
                assert sum(row.pages_sampled for row in found.classes) > 100
            except (NoSuchProcess, TargetGone) as error:
                endings.add(type(error).__name__)
            finally:
                killer.cancel()
        if {"whole", "TargetGone"} <= endings or time.monotonic() > deadline:
            break

    assert {"whole", "TargetGone"} <= endings


def test_a_process_that_becomes_another_program_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    """After exec nothing of what was read is true any more."""
    code = "import os; print(1, flush=True); input(); os.execvp('sleep', ['sleep', '60'])"
    with _program(code) as child:
        before = pager.analyze(child.pid).command
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        deadline = time.monotonic() + 30
        found = None
        while found is None or found.command == before:
            assert time.monotonic() < deadline
            with suppress(TargetGone):
                found = pager.analyze(child.pid)

        # Never a mixture: what is told of the new program is no larger than a program like it.
        assert found.rss_bytes < 1.5 * pager.analyze(sleeper.pid).rss_bytes


def test_the_command_says_what_and_why(
    stage: Stage, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes in one call: a table and a verdict of each, and of both together."""
    target = _python(stage)
    words = ("analyze", str(target.pid), str(sleeper.pid))

    assert 0 == main([*words])
    text = capsys.readouterr().out
    assert 0 == main([*words, "--json"])
    answer = json.loads(capsys.readouterr().out)

    assert "interpreter heap" in text
    assert "all 2 processes: " in text
    assert [target.pid, sleeper.pid] == [process["pid"] for process in answer["processes"]]
    small = answer["processes"][1]["verdict"]
    assert "no" == small["decision"]
    assert small["stays_bytes"] < answer["verdict"]["stays_bytes"]
    assert answer["verdict"]["decision"] in {"go", "try", "no"}


def _lines(pid: int, *keys: str) -> set[str]:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.replace("\t", " ") for line in status if line.split(":")[0] in keys}


def _faults(pid: int) -> tuple[str, str]:
    """Minor and major faults so far; fields 10 and 12 of proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return fields[7], fields[9]


def _as_nobody(pid: int) -> str:
    """What an unprivileged caller is told."""
    pager.page_size()  # The native module must be loaded before the rights are gone.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        name = "nothing"
        try:
            pager.analyze(pid)
        except BaseException as error:  # noqa: BLE001 - its name is the result
            name = type(error).__name__
        os.write(writer, name.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    answer = os.read(reader, 100).decode()
    os.close(reader)
    return answer

"""
What happens around a daemon on a bad day: logs that nobody reads, clocks that jump, debuggers,
programs that fork or exec without end, and three hundred sandboxes at once.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip.errors import AgentZipError, AlreadyTraced, TargetBusy
from agentzip.selftest.conditions import assert_free, wait_until
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target
from daemon_stage import DaemonStage, Sleeper, stage_of

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_SECONDS = 60

_JUMPING_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* Each second of the wall clock is another day: one ahead, one behind, and so on. */
static long jump(long second) { return second % 2 ? 86400 : -86400; }

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME)
        now->tv_sec += jump(now->tv_sec);
    return result;
}

time_t time(time_t *place)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place)
        *place = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
"""

_EXECUTOR = """
import os, sys, time
left = int(sys.argv[1])
held = [bytes([n % 251]) * 3000 for n in range(1000)]
time.sleep(0.01)
assert all(part == bytes([n % 251]) * 3000 for n, part in enumerate(held))
if left:
    os.execv(sys.executable, [sys.executable, "-I", "-c", sys.argv[2], str(left - 1), sys.argv[2]])
"""
"""Becomes itself again and again, and looks at its memory each time; ends with 1 if it is wrong."""

_FORKER = """
import os, select, sys
held = [bytes([n % 251]) * 3000 for n in range(4000)]
def right():
    return all(part == bytes([n % 251]) * 3000 for n, part in enumerate(held))
print("ready 0", flush=True)
forks = 0
while not select.select([0], [], [], 0)[0]:
    pid = os.fork()
    if pid == 0:
        # A grandchild that goes on when its parent has gone, as runaway programs make them.
        os.fork()
        os._exit(0 if right() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    forks += 1
print("ok", forks, right(), flush=True)
sys.stdin.readline()
sys.stdin.readline()
"""
"""Forks until it is told to end; each child looks at what it inherited."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[DaemonStage]:
    """A daemon that is not yet started."""
    with stage_of(tmp_path) as made:
        yield made


def _turn(stage: DaemonStage, target: Sleeper, number: int = 1) -> None:
    stage.out(number)
    with stage.client() as client:
        client.hint(stage.name(number), "running")
    assert "2048" == target.verify()


def _uptime(stage: DaemonStage) -> float:
    with stage.client() as client:
        return float(client.about()["uptime_seconds"])


@pytest.mark.parametrize("log", ["a full pipe", "a full disk"])
def test_a_log_that_takes_nothing_holds_nobody_up(stage: DaemonStage, log: str) -> None:
    """Not one byte of the log can be written from the start on; everything else goes its way."""
    reader, writer = os.pipe()
    if log == "a full pipe":
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writer, bytes(4096))
    else:
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    try:
        target = stage.sandbox(1)
        stage.start(stderr=writer)
        for _ in range(3):
            _turn(stage, target)
        stage.out(1)
        before = _uptime(stage)
        # In two looks it has told at least that there is somebody to look after.
        stage.until("it has looked twice more", lambda: _uptime(stage) > before + 3)
        # The orderly end waits a moment for the log's reader, and then ends without it.
        assert 0 == stage.stop()
        assert "2048" == target.verify()
    finally:
        os.close(reader)
        os.close(writer)


def test_a_wall_clock_that_jumps_changes_nothing(stage: DaemonStage, tmp_path: Path) -> None:
    """By two days and back, every second: waits are seen and kept, and the end comes in time."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the clock that jumps")
    source, library = tmp_path / "jumps.c", tmp_path / "jumps.so"
    source.write_text(_JUMPING_CLOCK)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
    )
    says = "import time; a = time.time(); time.sleep(1); print(abs(time.time() - a) > 1e5)"
    jumping = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", says], env=jumping, capture_output=True, text=True, check=True
    )
    assert "True" == done.stdout.strip(), "the clock does not jump"
    targets = [stage.sandbox(number) for number in (1, 2)]
    stage.start(environment=jumping)
    for _ in range(3):
        _turn(stage, targets[0])
    stage.out(2)
    ages = []
    for _ in range(16):
        time.sleep(0.25)
        found = stage.status(stage.name(2))
        assert found is not None
        assert ("waiting_user", "hint") == (found.phase, found.phase_source)
        ages.append(found.phase_age_s)
        assert 600 == pytest.approx(found.phase_age_s + found.expected_rest_s, abs=0.1)
    assert sorted(ages) == ages
    assert 2 < ages[-1] < _SECONDS
    assert 0 == stage.stop()
    assert ["2048", "2048"] == [target.verify() for target in targets]


def test_a_debugger_and_the_pager_leave_each_other_alone() -> None:
    """Under gdb pages come home but none leave; what gdb cannot read it says, and nobody hangs."""
    gdb = shutil.which("gdb")
    if gdb is None:
        pytest.skip("no gdb on this host")
    with Stage() as stage:
        target = stage.memory(8)
        start = target.ok("where").split()[0].split("-")[0]
        stage.attach(target)
        stage.page_out(target)
        words = [gdb, "-nx", "-q", "-p", str(target.pid)]
        words += ["-ex", f"x/gx 0x{start}", "-ex", "echo @@\n"]
        with subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as debugger:
            assert debugger.stdin is not None
            assert debugger.stdout is not None
            said = "".join(iter(debugger.stdout.readline, "@@\n"))
            # PTRACE_PEEKDATA does not wait for a page that is out; better no byte than a zero.
            assert "Cannot access memory" in said
            with pytest.raises(AlreadyTraced, match=str(debugger.pid)):
                stage.engine.page_out(target.pid)
            assert stage.engine.page_in(target.pid).pages_in > 2000
            with pytest.raises(AlreadyTraced, match=str(debugger.pid)):
                stage.engine.detach(target.pid)
            debugger.stdin.write(f"x/gx 0x{start}\ndetach\nquit\n")
            debugger.stdin.flush()
            assert f"0x{start}:" in debugger.stdout.read()
            debugger.wait(_SECONDS)
        assert_free(target.pid)
        target.verify()
        stage.page_out(target)
        stage.settle()


def test_a_program_that_becomes_another_all_the_time_is_never_harmed() -> None:
    """A hundred times; attached and paged out wherever it is met."""
    with Stage() as stage:
        engine = stage.open()
        words = [sys.executable, "-I", "-c", _EXECUTOR, "100", _EXECUTOR]
        with subprocess.Popen(words) as program:
            met = out = 0
            while program.poll() is None:
                with suppress(AgentZipError):
                    engine.attach(program.pid)
                    met += 1
                    out += engine.page_out(program.pid).pages_moved
                    if met % 3 == 0:
                        engine.detach(program.pid)
            assert 0 == program.wait(_SECONDS)
        print(f"attached {met} times, {out} pages moved")
        assert met > 10
        assert out > 1000
        assert wait_until(lambda: not engine.spaces() and not engine.stats().pool_slots, 10)
        stage.settle()


def test_a_program_that_forks_without_end_is_served_and_leaves_nothing() -> None:
    """Children and their orphans come faster than they are looked at; all see the right bytes."""
    with Stage() as stage, Target([sys.executable, "-c", _FORKER], verify="") as target:
        engine = stage.open()
        before = len(os.listdir("/proc/self/fd"))
        deadline = time.monotonic() + 8
        while not engine.spaces():
            with suppress(TargetBusy):
                engine.attach(target.pid)
        out = 0
        while time.monotonic() < deadline:
            with suppress(TargetBusy):
                out += engine.page_out(target.pid).pages_moved
        target.send("end")
        word, forks, right = target.read_line(_SECONDS, "end").split()
        print(f"{forks} forks, {out} pages moved")

        assert ("ok", "True") == (word, right)
        assert int(forks) > 10
        assert out > 4000
        assert stage.detach(target).complete
        assert wait_until(lambda: not engine.spaces() and not engine.stats().pool_slots, 10)
        assert wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, 10)
        assert 0 == engine.stats().pages_lost


@pytest.mark.timeout(300)
def test_three_hundred_sandboxes_at_once(stage: DaemonStage) -> None:
    """All leave, all come back right, and a kill -9 in between changes nothing for any."""
    number_of = 300
    for number in range(number_of):
        stage.sandbox(number, 1)
    stage.start()
    names = [stage.name(number) for number in range(number_of)]

    def attached() -> bool:
        with stage.client() as client:
            return number_of == len(client.spaces())

    stage.until("all are attached", attached, 120)
    with stage.client() as client:
        for name in names:
            client.hint(name, "waiting_user", 600)

    def out() -> bool:
        with stage.client() as client:
            return number_of == sum(space.pages_out > 200 for space in client.spaces())

    stage.until("all are out", out, 120)
    stage.kill()
    for sleeper in stage.sleepers[::10]:
        sleeper.send("verify")
    stage.start()
    assert {"ok 256"} == {sleeper.read_line(_SECONDS) for sleeper in stage.sleepers[::10]}
    assert {"256"} == {sleeper.verify(_SECONDS) for sleeper in stage.sleepers}
    assert 0 == stage.stop()
    assert {"256"} == {sleeper.verify(_SECONDS) for sleeper in stage.sleepers}


def test_a_target_that_is_killed_while_it_is_stopped_is_forgotten(stage: DaemonStage) -> None:
    """Stopped by SIGSTOP with its pages out, then ended: nothing waits for it."""
    target = stage.sandbox(1)
    stage.start()
    stage.out(1)
    os.kill(target.pid, signal.SIGSTOP)
    target.process.kill()
    target.wait(_SECONDS)
    stage.until("it is forgotten", lambda: stage.status(stage.name(1)) is None)

    def empty() -> bool:
        with stage.client() as client:
            return client.stats().pool_slots == 0

    # The engine notices an end by itself, sooner or later than the fleet does.
    stage.until("its pages are gone", empty)
    assert 0 == stage.stop()

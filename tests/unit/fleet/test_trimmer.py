"""Who is asked to trim itself, when, and what waits for it: with a fake sandbox."""

import logging
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.errors import NoSuchProcess, TrimRefused
from agentzip.fleet import FleetRunner, FleetSettings
from agentzip.fleet.life import Life, ProcessLife
from agentzip.fleet.registry import Member, Sandbox
from agentzip.fleet.scopes import Rule
from agentzip.fleet.trimmer import Trimmer, is_worth_it
from agentzip.host import processes
from agentzip.host.activity import Activity
from agentzip.policy import breakers, phases
from agentzip.testing import FakeEngine, FakeTarget
from agentzip.trimming import TRIM_SECONDS, TrimAnswer


class Stage:
    """A trimmer, sandboxes that answer when the test says so, and a clock that it moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[int] = []
        self.sockets: dict[int, str] = {}
        """Pid to the socket that it was started with."""
        self.refusing: set[int] = set()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_asked = threading.Event()
        self.trimmed = threading.Semaphore(0)
        self.trimmer = Trimmer(self.trimmed.release, self.offered, self.ask, lambda: self.now)

    def offered(self, pid: int) -> str | None:
        """As the environment of a process tells; one without an entry has ended."""
        if pid < 0:
            raise NoSuchProcess(f"no such process: {pid}")
        return self.sockets.get(pid)

    def ask(self, pid: int, start_time: int, seconds: float) -> TrimAnswer:
        """As a request over the socket."""
        assert (pid, True) == (start_time, 0 < seconds <= TRIM_SECONDS)
        self.asked.append(pid)
        self.is_asked.set()
        assert self.may_answer.wait(20)
        if pid in self.refusing:
            raise TrimRefused(f"socket of {pid} is not trusted")
        return TrimAnswer(pid, pid, {"resident_bytes": 1}, 10.0)

    def wait_until_trimmed(self) -> None:
        """The pages of the sandbox need wait no longer."""
        assert self.trimmed.acquire(timeout=20)


def life_of(*pids: int, trim: bool = True, phase: str = "waiting_user") -> Life:
    """A sandbox of attached processes that is in a phase."""
    rule = Rule(pattern="a-*", source="config", trim=trim)
    sandbox = Sandbox(
        name="box",
        rule=rule,
        cgroup="a-1",
        inode=1,
        domain="a",
        members=tuple(
            Member(pid=pid, start_time=pid, sandbox="box", command="agent") for pid in pids
        ),
        frozen=False,
        refused="",
        first_seen=0.0,
    )
    state = phases.apply_hint(phases.begin(0.0), phases.Hint(phase, 1.0, None))
    life = Life(sandbox, state, 0.02, breakers.BreakerState())
    for member in sandbox.members:
        life.processes[member.pid] = ProcessLife(
            member, attached=True, activity=Activity(member.pid, False, 0, 1000)
        )
    return life


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Nobody was asked yet."""
    found = Stage()
    yield found
    found.may_answer.set()
    found.trimmer.close()


def test_only_a_wait_that_is_long_enough_is_a_time_to_trim() -> None:
    """For a person, for at least 10 s, or at the end."""
    assert is_worth_it("waiting_user", None)
    assert is_worth_it("finishing", None)
    assert is_worth_it("waiting_model", 10)
    assert is_worth_it("waiting_tool", 60)
    assert not is_worth_it("waiting_model", None)
    assert not is_worth_it("waiting_tool", 9.9)
    assert not is_worth_it("running", 100)
    assert not is_worth_it("done", None)


def test_pages_wait_for_the_answer_and_nobody_else_does(stage: Stage) -> None:
    """`consider` returns while the sandbox is still at it."""
    stage.sockets[7] = "/trim"
    stage.may_answer.clear()
    stage.trimmer.consider(life_of(7, 8))
    assert stage.is_asked.wait(20)
    assert stage.trimmer.is_trimming("box")
    assert not stage.trimmer.is_trimming("other")
    stage.may_answer.set()
    stage.wait_until_trimmed()

    assert not stage.trimmer.is_trimming("box")
    assert [7] == stage.asked


def test_pages_wait_no_longer_than_a_trim_may_take(stage: Stage) -> None:
    """A sandbox that never answers keeps its pages for some seconds."""
    stage.sockets[7] = "/trim"
    stage.may_answer.clear()
    stage.trimmer.consider(life_of(7))
    assert stage.is_asked.wait(20)
    stage.now += TRIM_SECONDS

    assert not stage.trimmer.is_trimming("box")


def test_it_happens_once_a_wait_and_at_most_once_a_minute(stage: Stage) -> None:
    """Whatever is hinted in between."""
    stage.sockets[7] = "/trim"
    life = life_of(7)
    times = []
    for seconds, is_new_wait in [(0, True), (100, False), (0, True), (59, True), (1, True)]:
        stage.now += seconds
        life.trimmed = life.trimmed and not is_new_wait
        stage.trimmer.consider(life)
        if life.trim_at == stage.now:
            stage.wait_until_trimmed()
        times.append(len(stage.asked))

    assert [1, 1, 2, 2, 3] == times


@pytest.mark.parametrize("reason", ["scope", "frozen", "pinned", "left alone", "attached", "out"])
def test_who_did_not_agree_or_would_not_gain_is_left_alone(stage: Stage, reason: str) -> None:
    """The operator said no, it cannot answer, or its pages stay, or they are out already."""
    stage.sockets[7] = "/trim"
    life = life_of(7, trim=reason != "scope")
    (process,) = life.processes.values()
    if reason == "frozen":
        object.__setattr__(life.sandbox, "frozen", True)
    life.pinned = reason == "pinned"
    life.left_alone = "ratio 1.1" if reason == "left alone" else ""
    process.attached = reason != "attached"
    if reason == "out":
        engine = FakeEngine([FakeTarget(7, pages=200)])
        engine.attach(7)
        engine.page_out(7)
        (process.space,) = engine.spaces()
    stage.trimmer.consider(life)
    stage.trimmer.close()

    assert [] == stage.asked
    assert None is life.trim_at


def test_processes_that_share_a_socket_are_one(stage: Stage) -> None:
    """Children have their parent's environment; each further socket is asked as well."""
    stage.sockets.update({7: "/trim", 8: "/trim", 9: "/other"})
    stage.trimmer.consider(life_of(-1, 7, 8, 9))
    stage.wait_until_trimmed()

    assert [7, 9] == stage.asked


def test_a_refusal_is_logged_unless_another_process_can_ask(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A socket may belong to another user than the first process that names it."""
    caplog.set_level(logging.WARNING)
    stage.sockets.update({7: "/trim", 8: "/trim"})
    stage.refusing = {7}
    stage.trimmer.consider(life_of(7, 8))
    stage.wait_until_trimmed()
    assert [7, 8] == stage.asked
    assert [] == caplog.records
    stage.refusing = {7, 8}
    stage.trimmer.consider(life_of(7, 8))
    stage.wait_until_trimmed()

    assert "box did not trim itself: /trim: socket of 8 is not trusted" in caplog.text


def test_a_sandbox_that_works_again_is_not_asked(stage: Stage) -> None:
    """Its turn came too late."""
    stage.sockets[7] = "/trim"
    stage.trimmer.consider(life_of(7, phase="running"))
    stage.wait_until_trimmed()

    assert [] == stage.asked


def test_after_the_end_nobody_is_asked(stage: Stage) -> None:
    """A hint may still come in while the daemon stops."""
    stage.sockets[7] = "/trim"
    stage.trimmer.close()
    stage.trimmer.consider(life_of(7))

    assert [] == stage.asked
    assert not stage.trimmer.is_trimming("box")


def test_what_trims_itself_is_not_planned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages would only come back while it collects garbage."""
    with subprocess.Popen(["sleep", "60"]) as child:
        target = FakeTarget(child.pid, start_time=processes.process(child.pid).start_time)
        runner = FleetRunner(FakeEngine([target]), tmp_path, FleetSettings())
        lifecycle, now = runner.lifecycle, 0.0
        monkeypatch.setattr(lifecycle.observer, "_clock", lambda: now)
        monkeypatch.setattr(runner.service, "_clock", lambda: now)
        runner.service.sandbox_run("box", child.pid, target.start_time)
        for second in range(1, 20):
            now = float(second)
            lifecycle.observer.observe()
            if second == 10:
                runner.service.hint("box", "waiting_user")
        candidates = lifecycle._candidates(now, memory_has_price=True)
        planned = [life.sandbox.name for life, _ in candidates]
        monkeypatch.setattr(lifecycle.trimmer, "is_trimming", lambda name: name == "box")
        spared = lifecycle._candidates(now, memory_has_price=True)
        runner.stop()
        child.kill()

    assert ["box"] == planned
    assert [] == spared

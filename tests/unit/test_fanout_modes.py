"""The fan-out bench at play: turns, modes, the daemon's and the engine's stand-ins, the host."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self, cast

import pytest

from agentzip.bench.fanout import daemon_mode
from agentzip.bench.fanout.crew import Crew, Member
from agentzip.bench.fanout.custody import zswap_why_not
from agentzip.bench.fanout.daemon_mode import FullMode
from agentzip.bench.fanout.engine_modes import footprint_of, habits_of
from agentzip.bench.fanout.engine_process import EngineService
from agentzip.bench.fanout.idleness import Idleness
from agentzip.bench.fanout.modes import Mode, Worker, cpu_seconds, kernel_thread_seconds
from agentzip.bench.fanout.places import members, remove_tree
from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.bench.fanout.play import Stage, play, wait_for_commands
from agentzip.bench.fanout.readings import Footprint, Habits
from agentzip.children import Child
from agentzip.errors import InternalError, TargetGone
from agentzip.host.memory import MemoryUse
from agentzip.testing import FakeEngine, FakeTarget
from agentzip.workloads.crew import Sandbox, Turn


# ── the play ──────────────────────────────────────────────────────────────────────────────────────
class _Agent:
    """Answers at once; or is dead."""

    def __init__(self, dead: bool = False) -> None:
        self.dead = dead

        self.left = False

    def digest(self) -> str:
        return "digest"

    def leave(self) -> None:
        self.left = True

    def turn(self, number: int, choice: int) -> Turn:
        if self.dead:
            raise TargetGone("it died")
        wrong = ["sum"] if number == 1 else []
        return Turn("recalled", {"choice": choice, "wrong": wrong}, 0.25, 0.5)


class _Recorder(Mode):
    name = "recorder"

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, bool]] = []

    def idle(self, member: Member) -> None:
        self.heard.append(("idle", member.instance, member.waiting))

    def wake(self, member: Member) -> None:
        self.heard.append(("wake", member.instance, member.waiting))


def _crew(plan: FanoutPlan, *agents: object) -> Crew:
    members = [
        Member(number, cast("Sandbox", agent), Path("/nowhere"))
        for number, agent in enumerate(agents)
    ]
    return cast("Crew", SimpleNamespace(members=members, plan=plan))


def test_every_turn_wakes_and_waits_again() -> None:
    """The mode hears of each, and what was said is kept."""
    plan, mode, halves = FanoutPlan(sandboxes=2, turns=3, think_s=0.0), _Recorder(), [0]

    def at_half() -> None:
        halves[0] += 1

    stage = Stage(plan, mode, at_half)
    crew = _crew(plan, _Agent(), _Agent())
    played = play(crew, stage)

    for number, one in enumerate(played):
        heard = [(word, waiting) for word, instance, waiting in mode.heard if instance == number]
        assert [("wake", False), ("idle", True)] * 3 == heard
        choices = [json.loads(said)[1]["choice"] for said in one.said]
        assert [plan.choice(number, turn) for turn in range(3)] == choices
        assert all(seconds >= 0.25 for seconds in one.wakes_s)
        assert 1 == one.checks_wrong
    assert [1] == halves
    assert all(member.finished for member in crew.members)


def test_an_answer_that_is_written_is_told_before_it_is_there() -> None:
    """By then nothing leaves; a mode that needs no more words than that gets none."""
    plan = FanoutPlan(workload="A,waiting", sandboxes=2, turns=2, think_s=0.05, notice_s=0.02)

    class Told(_Recorder):
        def resume(self, member: Member) -> bool:
            self.heard.append(("resume", member.instance, member.waiting))
            return told

    for told in (False, True):
        mode = Told()
        played = play(_crew(plan, _Agent(), _Agent()), Stage(plan, mode, lambda: None))
        words = [[word for word, who, _ in mode.heard if who == one] for one in range(2)]
        woken = [] if told else ["wake"]
        # A person gives no notice.
        assert [["resume", *woken, "idle"] * 2, ["wake", "idle"] * 2] == words
        assert all(not waiting for word, _, waiting in mode.heard if word == "resume")
        assert [2, 2] == [len(one.turns_s) for one in played]


def test_a_sandbox_that_dies_is_told_and_the_others_go_on() -> None:
    """Its error is kept; those who live take all their turns."""
    plan = FanoutPlan(sandboxes=2, turns=2, think_s=0.0)
    stage = Stage(plan, _Recorder(), lambda: None)

    played = play(_crew(plan, _Agent(dead=True), _Agent()), stage)

    assert ["sandbox 0: it died"] == stage.failures
    assert [0, 2] == [len(one.turns_s) for one in played]


def test_a_halted_stage_ends_without_another_turn() -> None:
    """The first reason counts."""
    plan = FanoutPlan(sandboxes=1, turns=5, think_s=3600.0)
    stage = Stage(plan, _Recorder(), lambda: None)
    stage.halt("memory")
    stage.halt("later")

    assert [] == play(_crew(plan, _Agent()), stage)[0].turns_s
    assert "memory" == stage.why_halted


def test_who_leaves_and_who_never_rests() -> None:
    """The one tells its digest and is gone; of the other nobody says a word."""
    plan = FanoutPlan(workload="finishing,busy,waiting", sandboxes=3, turns=4, think_s=0.0)
    mode, agents, heard = _Recorder(), [_Agent() for _ in range(3)], list[tuple[int, int]]()
    stage = Stage(plan, mode, lambda: None, lambda one, turn, _: heard.append((one.instance, turn)))
    crew = _crew(plan, *agents)
    played = play(crew, stage)

    assert [True, False, False] == [agent.left for agent in agents]
    assert [True, False, False] == [member.gone for member in crew.members]
    assert ["digest", "", ""] == [one.digest for one in played]
    words = [[word for word, who, _ in mode.heard if who == one] for one in range(3)]
    assert [["wake", "idle", "wake"], [], ["wake", "idle"] * 2] == words
    assert [2, 4, 2] == [sum(who == one for who, _ in heard) for one in range(3)]


class _Process:
    """A command that ends when it is asked for the second time, or never."""

    def __init__(self, code: int | None) -> None:
        self.began_s = time.perf_counter()
        self._codes = [None, code]

    def exit_code(self) -> int | None:
        return self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]

    def last_words(self) -> str:
        return "no such file"


def test_commands_are_waited_for() -> None:
    """Until they end, or their time is over; who failed says why."""
    plan = FanoutPlan(command=("x",), command_s=1.0, sandboxes=3)
    stage = Stage(plan, _Recorder(), lambda: None)
    crew = _crew(plan, _Process(0), _Process(3), _Process(None))
    played = wait_for_commands(crew, stage)

    assert [True, False, True] == [one.finished for one in played]
    assert [True, True, False] == [member.gone for member in crew.members]
    assert ["command 1: exit code 3: no such file"] == stage.failures
    assert played[2].ended_s - played[2].began_s >= 1.0


def test_a_wait_is_seen_from_outside() -> None:
    """Quiet for a while is a wait; what a page out takes is no wake; work after it is one."""
    seen = Idleness()
    shares = [0.9, 0.0, 0.0, 0.5, *[0.01] * 4, 0.4, 0.6, 0.0, 0.05, 0.0, 0.8, 0.9]

    assert [7, 13] == [at for at, share in enumerate(shares) if seen.look(share)]
    assert not seen.idle


def test_work_whose_time_is_over_is_not_begun() -> None:
    """A page out that still waits in line is dropped when its sandbox goes on."""
    worker, gate, done = Worker(), threading.Event(), list[int]()
    crew = [Member(number, cast("Sandbox", None), Path("/nowhere")) for number in range(40)]

    def work(member: Member) -> None:
        gate.wait(30)
        done.append(member.instance)

    for member in crew:
        worker.give(member, work)
    worker.drop(crew[39])
    gate.set()
    worker.close()

    assert 39 not in done
    assert worker.failure() is None


def test_work_that_fails_is_not_forgotten() -> None:
    """It is raised when the mode stops."""
    worker = Worker()

    def fail(_member: Member) -> None:
        raise InternalError("broken")

    worker.give(Member(0, cast("Sandbox", None), Path("/nowhere")), fail)
    worker._pool.shutdown(wait=True)

    assert "broken" in str(worker.failure())


def test_a_hint_that_nobody_hears_is_counted(tmp_path: Path) -> None:
    """While the daemon is being replaced the sandboxes go on all the same."""
    mode = FullMode(tmp_path, FanoutPlan(modes=("full",), kill_daemon=True))
    mode._names[0] = "agent"
    mode.wake(Member(0, cast("Sandbox", None), tmp_path))

    assert 1 == mode._hints_lost


class _FakeDaemon(Child):
    """A process in the daemon's place: it can be killed and started again."""

    def __init__(self, _run_dir: Path, _config: Path, _group: Path, log: Path) -> None:
        log.write_text("started\n")
        super().__init__(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))


class _FakeClient:
    """What the daemon would hear, and a sandbox that it has found."""

    heard: ClassVar[list[tuple[str, str, float | None]]] = []

    def __init__(self, _run_dir: Path) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass

    def ping(self) -> int:
        return 1

    def sandboxes(self) -> list[SimpleNamespace]:
        cgroup = "/agentzip-bench-1/agent-sandbox-0003.slice"
        return [SimpleNamespace(name="agent-3", cgroup=cgroup, left_alone="")]

    def hint(self, sandbox: str, phase: str, expect_s: float | None) -> None:
        self.heard.append((sandbox, phase, expect_s))

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(faults=30, faults_zero=10, keeper_pid=0, pages_lost=0)


def test_the_daemon_hears_of_waits_and_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its group, told with the mean think time; killed at half, it is started again."""
    monkeypatch.setattr(daemon_mode, "ControlClient", _FakeClient)
    monkeypatch.setattr(daemon_mode, "_DaemonChild", _FakeDaemon)
    places = SimpleNamespace(pattern="bench/agent-sandbox-*.slice", daemon=tmp_path)
    crew = cast("Crew", SimpleNamespace(plan=FanoutPlan(think_s=7.0), places=places))
    member = Member(3, cast("Sandbox", None), Path("/x/agent-sandbox-0003.slice"))
    plan = FanoutPlan(modes=("full",), kill_daemon=True, latency_target_s=0.02)
    with FullMode(tmp_path, plan) as mode:
        mode.start(crew)
        first = cast("Any", mode._daemon).pid
        mode.add(member)
        member.waiting = True
        mode.idle(member)
        mode._worker._last[3].result()
        assert not mode.resume(member)
        mode.wake(member)
        mode.at_half()
        for thread in threading.enumerate():
            if thread.name == "killer":
                thread.join()
        notes, faults = mode.notes(), mode.faults()
        assert first != cast("Any", mode._daemon).pid
        mode._daemon, daemon = None, mode._daemon
        cast("Any", daemon).stop()

    config = json.loads((tmp_path / "config.yaml").read_text())
    assert [{"cgroup": "bench/agent-sandbox-*.slice"}] == config["scopes"]
    assert "20ms" == config["policy"]["latency_target"]
    # Whatever memory the host has: with the defaults nothing would leave.
    assert config["policy"]["watermarks"]["start"] <= 2
    phases = [("waiting_model", 7.0), ("resuming", None), ("running", None)]
    assert [("agent-3", *told) for told in phases] == _FakeClient.heard
    assert (1, 0) == (notes["daemon_kills"], notes["hints_lost"])
    # Of the daemon that was killed, and of the one that goes on.
    assert 40 == faults


def test_the_engine_of_the_bench_attaches_pages_out_and_tells() -> None:
    """Over the calls that its socket offers; a process that is there already is no error."""
    engine = FakeEngine([FakeTarget(7, 100)])
    service = EngineService(engine)
    service.add(7, prefetch=False)
    service.add(7, prefetch=False)
    service.out(7)
    state = json.loads(json.dumps(service.state()))

    assert [7] == [space["pid"] for space in state["spaces"]]
    assert 0 < state["spaces"][0]["pages_out"]
    assert ("page_out", 7) in engine.calls
    service.close()
    assert [] == engine.spaces()


# ── the host ──────────────────────────────────────────────────────────────────────────────────────
def _lay_process(root: Path, pid: int, name: str, ticks: int) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    fields = ["S", "1", *["0"] * 9, str(ticks), str(ticks), *["0"] * 10]
    (folder / "stat").write_text(f"{pid} ({name} x) {' '.join(fields)}\n")
    (folder / "comm").write_text(f"{name}\n")


def test_processor_time_of_processes_and_kernel_threads(tmp_path: Path) -> None:
    """User and system time; a name that has a blank in it does not shift the fields."""
    for pid, name in ((5, "kswapd0"), (6, "kswapd1"), (7, "python")):
        _lay_process(tmp_path, pid, name, 100)

    assert cpu_seconds(7, tmp_path) * 2 == kernel_thread_seconds("kswapd", tmp_path)
    assert 0.0 == cpu_seconds(8, tmp_path)


def test_groups_are_removed_with_all_below(tmp_path: Path) -> None:
    """The deepest first; and who is in them can be told before."""
    (tmp_path / "top" / "agent" / "deep").mkdir(parents=True)

    assert [] == members(tmp_path / "top")
    assert remove_tree(tmp_path / "top", 1.0)
    assert not (tmp_path / "top").exists()


def test_zswap_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    """Each reason is told; a free one is taken."""
    folder = tmp_path / "sys/module/zswap/parameters"
    assert "no zswap" in zswap_why_not(tmp_path)
    folder.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/swaps").write_text("Filename Type\n")
    (folder / "enabled").write_text("Y\n")
    assert "in use" in zswap_why_not(tmp_path)
    (folder / "enabled").write_text("N\n")
    assert "" == zswap_why_not(tmp_path)
    (tmp_path / "proc/swaps").write_text("Filename Type\n/dev/x partition\n")
    assert "another swap" in zswap_why_not(tmp_path)


def test_a_footprint_has_pool_tables_and_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index and dictionaries are on the bill."""
    monkeypatch.setattr("agentzip.host.memory.own_overhead", lambda pids: 10 * len(pids))
    use = MemoryUse(0, 0, 0, 0, pss_file=4)
    monkeypatch.setattr("agentzip.host.memory.sum_use", lambda _pids: use)
    counters = ("table_bytes", "index_bytes", "dictionary_bytes", "keeper_pid")
    stats = {"pool_bytes": 100, **dict.fromkeys(counters, 1)}

    assert Footprint(pool=100, tables=3, overhead=20, overhead_files=4) == footprint_of(stats, 7)


def test_counters_are_those_of_the_processes_asked_for() -> None:
    """A sandbox of several processes has the sum of theirs."""
    names = ("pages_spared", "pages_spared_touched", "pages_prefetched", "pages_missed")
    spaces = [{"pid": pid, **dict.fromkeys(names, pid)} for pid in (1, 2, 3)]

    assert Habits(4, 4, 4, 4) == habits_of(spaces, {1, 3})

"""What is remembered of a sandbox, and how it is told."""

from dataclasses import replace

from agentzip import model
from agentzip.fleet.life import Life, ProcessLife
from agentzip.fleet.registry import Member, Sandbox
from agentzip.fleet.scopes import Rule
from agentzip.host.activity import Activity
from agentzip.policy import breakers, phases, temperature
from agentzip.sandboxes import Decision
from agentzip.testing import FakeEngine, FakeTarget

_DECISION = Decision(age_s=0.0, action="leave", pid=1, pages=0, gain=0.0, cost=0.0, reason="one")


def _member(pid: int, start_time: int = 1) -> Member:
    return Member(pid=pid, start_time=start_time, sandbox="a", command="agent")


def _life(*members: Member) -> Life:
    sandbox = Sandbox(
        name="a",
        rule=Rule(pattern="agents-*", source="config"),
        cgroup="a",
        inode=1,
        domain="scope:agents-*",
        members=members,
        frozen=False,
        refused="",
        first_seen=0.0,
    )
    life = Life(sandbox, phases.begin(0.0), 0.02, breakers.BreakerState())
    life.take_members()
    return life


def _space(**facts: int) -> model.SpaceStatus:
    engine = FakeEngine([FakeTarget(1)])
    engine.attach(1)
    return replace(engine.spaces()[0], **facts)  # type: ignore[arg-type]


def _report(pages: int, elapsed_us: float = 1e6) -> model.PageOutReport:
    engine = FakeEngine([FakeTarget(1)])
    engine.attach(1)
    return replace(engine.page_out(1), pages_moved=pages, elapsed_us=elapsed_us)


def _seen(cpu_ticks: int = 0, rss: int = 1000, *, running: bool = False) -> Activity:
    return Activity(1, running, cpu_ticks, rss)


def test_members_are_followed_and_a_pid_used_again_is_another_process() -> None:
    """Who left is told; the pid that names another process now is told as well."""
    life = _life(_member(1), _member(2), _member(3))
    former = life.processes[2]
    life.sandbox = replace(life.sandbox, members=(_member(2, 7), _member(3)))

    assert [1, 2] == life.take_members()
    assert [3, 2] == list(life.processes)
    assert former is not life.processes[2]


def test_a_scope_that_is_off_has_nobody_to_look_after() -> None:
    """The same as a sandbox that cannot be borrowed."""
    life = _life(_member(1))
    life.sandbox = replace(life.sandbox, rule=replace(life.sandbox.rule, enabled=False))

    assert [1] == life.take_members()
    refused = _life(_member(1))
    refused.sandbox = replace(refused.sandbox, refused="gVisor")
    assert [1] == refused.take_members()


def test_processor_time_is_measured_over_half_a_second_at_least() -> None:
    """One hundredth of a second within a tenth of one is no tenth of a core."""
    process = ProcessLife(_member(1))
    process.look(_seen(100), 10.0)
    assert 0.0 == process.cpu_cores
    process.look(_seen(101), 10.1)
    assert 0.0 == process.cpu_cores
    process.look(_seen(150), 11.0)
    assert 0.5 == process.cpu_cores


def test_a_measurement_that_begins_anew_forgets_what_was_before() -> None:
    """As after a hint: the second before it was work, the second after it is not."""
    process = ProcessLife(_member(1))
    process.look(_seen(0), 10.0)
    process.measure_anew(_seen(90), 10.9)
    process.look(_seen(90), 11.0)
    assert 0.0 == process.cpu_cores
    process.look(_seen(100), 11.9)
    assert 0.1 == round(process.cpu_cores, 6)


def test_refaults_add_up_until_they_are_taken() -> None:
    """Those of another daemon are not news; those soon after a page out are counted apart."""
    process = ProcessLife(_member(1))
    process.count_faults(_space(faults=70), 1.0, 10.0)
    assert (0, ()) == (process.faults_new, process.touches)
    process.left(2.0, _report(100), None, 0, whole=False)
    process.count_faults(_space(faults=73), 3.0, 10.0)
    process.count_faults(_space(faults=75), 4.0, 10.0)
    process.count_faults(_space(faults=95), 40.0, 10.0)

    assert (25, 5) == (process.faults_new, process.back_soon)
    assert (4.0, 40.0) == process.touches


def test_a_wait_is_judged_by_all_its_page_outs() -> None:
    """It counts from the first of them, once; the first wait pays for later ones as well."""
    process = ProcessLife(_member(1))
    process.left(10.0, _report(100), _seen(), 0, whole=False)
    process.left(12.0, _report(40, 5e5), _seen(), 0, whole=True)
    process.back_soon = 900

    cycle = process.wait_over(30.0)
    assert breakers.Cycle(waited_s=20.0, pages_out=140, pages_back_soon=140, cpu_s=1.5 / 4) == cycle
    assert None is process.wait_over(31.0)
    process.left(50.0, _report(7), _seen(), 0, whole=True)
    again = process.wait_over(51.0)
    assert breakers.Cycle(waited_s=1.0, pages_out=7, pages_back_soon=0, cpu_s=1.0) == again


def test_a_whole_page_out_shows_what_cannot_leave() -> None:
    """All that is left, but for what was told to stay; a part of one shows nothing."""
    process = ProcessLife(_member(1))
    process.add_restless([(0x1000, 0x3000)])
    process.left(1.0, _report(100), _seen(rss=300), 50, whole=False)
    assert 300 == process.resident_movable
    process.left(2.0, _report(100), _seen(rss=300), 50, whole=True)

    assert 300 - 50 - 2 == process.stay_pages
    assert 52 == process.resident_movable


def test_restless_ranges_have_a_bound_and_the_oldest_go_first() -> None:
    """One that is touched again is not kept twice."""
    process = ProcessLife(_member(1))
    process.add_restless([(0, 4096)])
    process.add_restless((n * 8192, n * 8192 + 4096) for n in range(1, 4096))
    assert 4096 == len(process.restless)
    process.add_restless([(1 << 40, (1 << 40) + 4096), (8192, 12288)])

    assert 4096 == len(process.restless)
    assert (0, 4096) not in process.restless
    assert 1 == process.restless.count((8192, 12288))


def test_restless_pages_stay_for_some_waits_and_then_have_to_show_it_again() -> None:
    """Waits in which nothing left do not count."""
    process = ProcessLife(_member(1))
    process.add_restless([(0, 4096)])
    for wait in range(4):
        assert [(0, 4096)] == process.restless
        process.wait_over(wait)
        process.left(wait, _report(10), _seen(), 0, whole=True)
        process.wait_over(wait + 0.5)
    assert [(0, 4096)] == process.restless
    process.left(9.0, _report(10), _seen(), 0, whole=True)
    process.wait_over(9.5)
    assert [] == process.restless


def test_the_planner_sees_working_set_rest_and_restless_apart() -> None:
    """What of the learned set is out is not here to leave."""
    life = _life(_member(1))
    process = life.processes[1]
    process.look(_seen(rss=1000), 0.0)
    process.count_faults(_space(pages_out=500), 0.0, 10.0)
    process.expected_pages, process.expected_out = 100, 30
    process.stay_pages = 200
    process.add_restless([(0, 10 * 4096)])

    part = life.part(1, 5.0, temperature.Thresholds())
    assert (70, 720, 10, 30) == (
        part.working_set_pages,
        part.rest_pages,
        part.restless_pages,
        part.working_set_out,
    )
    assert (0.0, 3.0, None) == (part.quiet_s, part.ratio, part.paged_out_s)


def test_a_ratio_that_does_not_pay_is_told_and_tried_again_later() -> None:
    """From a fair sample; after ten minutes the sandbox may do something else."""
    life = _life(_member(1))
    process = life.processes[1]
    process.encoded_pages, process.encoded_bytes = 3000, 3000 * 4096 * 5 // 6
    life.judge(0.0)
    assert "" == life.left_alone
    process.encoded_pages, process.encoded_bytes = 5000, 5000 * 4096 * 5 // 6
    life.judge(1.0)
    assert life.left_alone.startswith("ratio 1.2 after 5000 pages")
    process.encoded_pages, process.encoded_bytes = 0, 0
    life.judge(500.0)
    assert life.left_alone.startswith("ratio 1.2")
    assert life.status(500.0).left_alone == life.left_alone
    life.judge(602.0)
    assert "" == life.left_alone


def test_a_sandbox_that_is_refused_is_left_alone_for_as_long_as_it_is() -> None:
    """The reason goes with its cause."""
    life = _life(_member(1))
    life.sandbox = replace(life.sandbox, refused="gVisor")
    life.judge(0.0)
    assert "gVisor" == life.left_alone
    life.sandbox = replace(life.sandbox, refused="")
    life.judge(1.0)
    assert "" == life.left_alone


def test_who_sleeps_is_looked_at_seldom() -> None:
    """Until a page comes back, a process appears, or the freezer holds it."""
    life = _life(_member(1))
    process = life.processes[1]
    process.look(_seen(), 0.0)
    for at in (1.0, 2.0, 3.0, 4.0):
        assert life.due(at)
        life.state = phases.advance(life.state, life.reading(at))
        life.looked_at = at
    assert ("waiting_model", 0.0) == (life.state.phase, life.state.since)
    assert not life.due(5.0)
    assert life.due(8.5)
    process.faults_new = 1
    assert life.due(5.0)
    process.faults_new = 0
    life.processes[2] = ProcessLife(_member(2))
    assert life.due(5.0)
    del life.processes[2]
    life.sandbox = replace(life.sandbox, frozen=True)
    assert life.due(5.0)


def test_a_decision_to_leave_is_renewed_and_others_are_kept() -> None:
    """A hundred ticks that change nothing do not push out the last page out."""
    life = _life(_member(1))
    life.note(0.0, replace(_DECISION, action="page_out"))
    for at in range(100):
        life.note(float(at), replace(_DECISION, reason=str(at)))

    assert [("page_out", "one"), ("leave", "99")] == [
        (decision.action, decision.reason) for _, decision in life.decisions
    ]


def test_decisions_about_several_processes_are_renewed_each() -> None:
    """Two processes that take turns do not fill the list, either."""
    life = _life(_member(1), _member(2))
    life.note(0.0, replace(_DECISION, action="page_out"))
    for at in range(100):
        life.note(float(at), replace(_DECISION, pid=1))
        life.note(float(at), replace(_DECISION, pid=2))

    assert ["page_out", "leave", "leave"] == [decision.action for _, decision in life.decisions]


def test_a_status_adds_up_its_processes() -> None:
    """Only attached ones are named, and why another is not is said."""
    life = _life(_member(1), _member(2))
    for pid in (1, 2):
        life.processes[pid].look(_seen(rss=10), 0.0)
        life.processes[pid].space = _space(pages_out=5, faults=2, wakes=1)
    life.processes[1].attached = True
    life.processes[2].refused = "it is being traced"
    life.wakes_ms.extend([1.0, 2.0, 3.0])

    status = life.status(4.0)
    assert ([1], 20 * 4096, 10, 4, 2) == (
        status.pids,
        status.rss_bytes,
        status.pages_out,
        status.faults,
        status.wakes,
    )
    assert ("starting", "seen", 4.0) == (status.phase, status.phase_source, status.phase_age_s)
    assert ("it is being traced", 2.0) == (status.left_alone, status.wake_p50_ms)

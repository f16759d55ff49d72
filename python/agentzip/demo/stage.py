"""
The steps of the demo, one function each.

    start       agents load their data, answer once, and wait for the model
    baseline    RSS, PSS, MemAvailable; answer and digest of each agent
    page out    everything that may leave, while they wait; measure again
    verify      pages come home in batches; each is compared from outside, before anybody wakes
    again       the same page out a second time: clean pages need no encoding
    wake        each agent does the same tool call as before; its pages come by faults
    detach      give the agents back, compare their digests, look for traces

The order matters: the agents sleep from the snapshot to the comparison, so a page that differs is
our doing and nobody else's.
"""

import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from agentzip import model
from agentzip.accounting import Gain, gain
from agentzip.daemon import EmbeddedDaemon
from agentzip.demo.crew import Agent, crew, for_all
from agentzip.demo.leftovers import left_in_agents, left_on_host
from agentzip.demo.report import DemoResult, print_report
from agentzip.errors import InvalidSetting, NoSuchProcess, NotEnoughMemory
from agentzip.host import memory, pages, processes
from agentzip.pager import Pager
from agentzip.units import format_bytes

__all__ = ["play"]

_AGENT_BYTES = 400 * 2**20
"""Free memory asked for per agent: what it holds, and the peak while it loads."""

_QUESTION = 3
"""The tool call that is timed before and after; the same one, so that times can be compared."""


@dataclass(frozen=True, slots=True)
class _Baseline:
    rss: list[int]
    pss: list[int]
    available: int
    answers: list[object]
    digests: list[str]
    tool_ms: list[float]


@dataclass(frozen=True, slots=True)
class _Verified:
    equal: int
    different: int
    page_in_seconds: float


def play(settings: model.Settings, sandboxes: int, show: bool) -> DemoResult:
    """
    Play the whole demo.

    Args:
        settings: How the engine runs; the demo makes an own directory below its run directory.
        sandboxes: How many agents.
        show: Print the steps to stderr and the table to stdout.

    Raises:
        InvalidSetting: numpy or pandas is missing.
        NotEnoughMemory: the host has too little memory for so many agents.
        AgentZipError: the engine cannot work here.
    """
    _check_needs(sandboxes)
    steps = _Steps(show)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="agentzip-demo-"))
        with steps.step(f"start: {sandboxes} agents load their data"):
            agents = stack.enter_context(crew(sandboxes, Path(folder)))
        with steps.step("baseline") as say:
            baseline = _measure_baseline(agents)
            say(f"RSS {format_bytes(sum(baseline.rss))}, PSS {format_bytes(sum(baseline.pss))}")
        with EmbeddedDaemon(settings, private=True) as embedded:
            result = _with_engine(embedded.engine, agents, baseline, steps)
            keeper = _keeper(embedded.engine)
            run_dir = embedded.daemon.settings.run_dir
        with steps.step("detach: agents are as they were found"):
            digests = for_all(agents, Agent.digest, at_once=os.cpu_count() or 1)
            changed = sum(a != b for a, b in zip(baseline.digests, digests, strict=True))
            left = left_in_agents(agents)
    left += left_on_host(agents, keeper, run_dir)
    result = replace(result, digests_wrong=max(result.digests_wrong, changed), left_behind=left)
    if show:
        print_report(result, Console(highlight=False))
    return result


def _check_needs(sandboxes: int) -> None:
    missing = [name for name in ("numpy", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidSetting(
            f"the demo's agents need {' and '.join(missing)}", "pip install 'agentzip[demo]'"
        )
    available = memory.memory_available()
    if available < sandboxes * _AGENT_BYTES:
        raise NotEnoughMemory(
            f"{sandboxes} agents need {format_bytes(sandboxes * _AGENT_BYTES)} of free memory, "
            f"the host has {format_bytes(available)}",
            f"try --sandboxes {max(1, available // _AGENT_BYTES)}",
        )


def _measure_baseline(agents: list[Agent]) -> _Baseline:
    digests = for_all(agents, Agent.digest, at_once=os.cpu_count() or 1)
    # Twice, and the second counts: the first call fills caches that the later one would find full.
    for agent in agents:
        agent.tool(_QUESTION)
    timed = [agent.tool(_QUESTION) for agent in agents]
    use = [memory.memory_use(agent.pid) for agent in agents]
    return _Baseline(
        rss=[one.rss for one in use],
        pss=[one.pss for one in use],
        available=memory.memory_available(),
        answers=[answer for answer, _ in timed],
        digests=digests,
        tool_ms=[seconds * 1000 for _, seconds in timed],
    )


def _with_engine(
    engine: Pager, agents: list[Agent], baseline: _Baseline, steps: "_Steps"
) -> DemoResult:
    with steps.step("attach"):
        for agent in agents:
            engine.attach(agent.pid, agent.start_time)
        snapshots = [pages.snapshot(agent.pid, _movable(engine, agent)) for agent in agents]
    with steps.step("page out: all agents wait for the model") as say:
        out, page_out_seconds = _page_out(engine, agents)
        gained = _gain_now(engine, agents, baseline)
        say(f"{out} pages left, ratio {gained.ratio:.2f}x")
    with steps.step("verify: bring pages home and compare each one") as say:
        verified = _verify(engine, agents, snapshots)
        say(f"{verified.equal} equal, {verified.different} different")
    del snapshots
    with steps.step("page out again: clean pages need no encoding"):
        _, again_seconds = _page_out(engine, agents)
        stop = engine.stats().stop
        engine.reset_stats()
    with steps.step("wake: each agent does the same tool call as before") as say:
        timed = [agent.tool(_QUESTION) for agent in agents]
        fault = engine.stats().fault_service
        say(f"{fault.count} page faults")
    answers = [answer for answer, _ in timed]
    after_wake = _gain_now(engine, agents, baseline)
    with steps.step("wake again, announced: what the first wake needed comes home before"):
        _page_out(engine, agents)
        announced = [_wake_announced(engine, agent) for agent in agents]
    answers += [answer for answer, _ in announced]
    return DemoResult(
        gain=gained,
        gain_after_wake=after_wake,
        stop=stop,
        fault=fault,
        tool_ms=baseline.tool_ms,
        wake_ms=[seconds * 1000 for _, seconds in timed],
        announced_wake_ms=[seconds * 1000 for _, seconds in announced],
        page_out_seconds=page_out_seconds,
        page_out_again_seconds=again_seconds,
        page_in_seconds=verified.page_in_seconds,
        pages_out=out,
        pages_verified=verified.equal,
        pages_wrong=verified.different + engine.stats().pages_lost,
        digests_wrong=sum(a != b for a, b in zip(baseline.answers * 2, answers, strict=True)),
    )


def _movable(engine: Pager, agent: Agent) -> list[tuple[int, int]]:
    regions = engine.regions(agent.pid)
    return sorted((region.start, region.end) for region in regions if region.movable)


def _page_out(engine: Pager, agents: list[Agent]) -> tuple[int, float]:
    started = time.perf_counter()
    stored = sum(engine.page_out(agent.pid).pages_stored for agent in agents)
    return stored, time.perf_counter() - started


def _wake_announced(engine: Pager, agent: Agent) -> tuple[object, float]:
    """The answer, and the seconds of prefetch and tool call together."""
    started = time.perf_counter()
    engine.wake(agent.pid)
    answer, _ = agent.tool(_QUESTION)
    return answer, time.perf_counter() - started


def _gain_now(engine: Pager, agents: list[Agent], baseline: _Baseline) -> Gain:
    stats = engine.stats()
    return gain(
        baseline_rss=baseline.rss,
        baseline_pss=baseline.pss,
        after_pss=[memory.memory_use(agent.pid).pss for agent in agents],
        pool_bytes=stats.pool_bytes,
        table_bytes=stats.table_bytes,
        overhead_bytes=memory.own_overhead([os.getpid(), stats.keeper_pid]),
        available_before=baseline.available,
        available_after=memory.memory_available(),
    )


def _verify(engine: Pager, agents: list[Agent], snapshots: list[pages.Snapshot]) -> _Verified:
    """Bring every page home and compare; the agents have not run since the snapshot."""
    equal = different = 0
    seconds = 0.0
    for agent, before in zip(agents, snapshots, strict=True):
        movable = _movable(engine, agent)
        stayed = pages.present_pages(agent.pid, movable)
        started = time.perf_counter()
        engine.page_in(agent.pid)
        seconds += time.perf_counter() - started
        after = pages.snapshot(agent.pid, movable)
        outcome = pages.compare(before, stayed, after)
        equal += outcome.equal
        different += outcome.different
    return _Verified(equal, different, seconds)


def _keeper(engine: Pager) -> processes.ProcessInfo | None:
    try:
        return processes.process(engine.stats().keeper_pid)
    except NoSuchProcess:
        return None


class _Steps:
    """Shows on stderr what is being done and how long it took."""

    def __init__(self, show: bool) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=not show)

    @contextmanager
    def step(self, title: str) -> Iterator["_Say"]:
        """One step; what is said during it is added to its line."""
        say = _Say()
        started = time.perf_counter()
        with self._console.status(title):
            yield say
        detail = f" ({say.text})" if say.text else ""
        line = f"{time.perf_counter() - started:6.2f} s  {title}{detail}"
        self._console.print(line, soft_wrap=True)


class _Say:
    """Collects the result of a step."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, text: str) -> None:
        self.text = text

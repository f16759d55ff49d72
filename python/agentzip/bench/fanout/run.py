"""
A run: the same sandboxes again for each mode, `none` first, in as many rounds as asked for.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from agentzip.bench.fanout.crew import AT_ONCE, Crew, Member, data_folders
from agentzip.bench.fanout.custody import Custody
from agentzip.bench.fanout.daemon_mode import FullMode
from agentzip.bench.fanout.engine_modes import EncodeMode, PrefetchMode
from agentzip.bench.fanout.idleness import IdleWatch
from agentzip.bench.fanout.kernel_modes import KsmMode, ZramMode, ZswapMode
from agentzip.bench.fanout.modes import Mode, NoneMode
from agentzip.bench.fanout.places import Places
from agentzip.bench.fanout.plan import WATERMARKS, FanoutPlan
from agentzip.bench.fanout.play import Stage, play, wait_for_commands
from agentzip.bench.fanout.readings import ModeRun, Played
from agentzip.bench.fanout.result import FanoutResult, figures, median_of
from agentzip.bench.fanout.watch import Watch
from agentzip.errors import AgentZipError, InternalError, InvalidSetting
from agentzip.host import memory, processors
from agentzip.workloads.crew import why_not

__all__ = ["Ground", "ground", "run_fanout", "run_mode", "telling"]

Tell = Callable[[str], None]


def telling(tell: Tell, about: str) -> Tell:
    """Tell with a heading before it."""
    return lambda text: tell(f"{about}: {text}")


class Ground:
    """Where runs take place: files, control groups, and the data of the sandboxes."""

    def __init__(self, folder: Path, places: Places) -> None:
        self.folder = folder
        self.places = places
        self._data: dict[int, list[Path]] = {}

    def data(self, plan: FanoutPlan, tell: Tell) -> list[Path]:
        """Data files for so many sandboxes; made once."""
        if plan.sandboxes not in self._data:
            tell(f"making the data of {plan.sandboxes} sandboxes")
            home = self.folder / f"data-{plan.sandboxes}"
            self._data[plan.sandboxes] = data_folders(plan, home)
        return self._data[plan.sandboxes]


@contextmanager
def ground(plan: FanoutPlan) -> Iterator[Ground]:
    """
    Make the place for runs; it is removed however the bench ends.

    Raises:
        InvalidSetting: this host cannot run the workload.
        Unsupported: there is no unified hierarchy of control groups.
    """
    for name in plan.names if not plan.command else ():
        if reason := why_not(name):
            raise InvalidSetting(
                f"workload {name} cannot run here: {reason}",
                "choose another one, or pip install 'agentzip[bench]'",
            )
    places = Places()
    folder = Path(tempfile.mkdtemp(prefix="agentzip-fanout-"))
    with Custody("run", str(folder), str(places.top)):
        yield Ground(folder, places)


def run_fanout(plan: FanoutPlan, tell: Tell = lambda _: None) -> FanoutResult:
    """
    Run every mode in every round; `tell` hears what is being done.

    A mode that cannot run here is skipped with its reason.

    Raises:
        AgentZipError: the bench itself cannot work here, or mode none failed.
    """
    result = FanoutResult(plan=asdict(plan), host=_host())
    began = time.monotonic()
    with ground(plan) as place:
        for number in range(plan.rounds):
            modes = plan.chosen
            # Whoever is late in a round on a host that gets warm is early in the next one.
            turn = 1 + number % max(1, len(modes) - 1)
            modes = modes[:1] + modes[turn:] + modes[1:turn]
            result.rounds.append([])
            none: ModeRun | None = None
            for name in modes:
                if name in result.skipped:
                    continue
                about = f"round {number + 1} of {plan.rounds}: {name}"
                try:
                    run = run_mode(name, plan, place, telling(tell, about))
                except AgentZipError as error:
                    if none is None:
                        raise
                    result.skipped[name] = str(error)
                    continue
                none = none or run
                result.rounds[-1].append(figures(run, none))
    result.modes = [
        median_of(found)
        for name in plan.chosen
        if (found := [one for some in result.rounds for one in some if one.mode == name])
    ]
    result.host["load_after"] = os.getloadavg()[0]
    result.seconds = time.monotonic() - began
    return result


def run_mode(name: str, plan: FanoutPlan, place: Ground, tell: Tell) -> ModeRun:
    """
    Start the sandboxes, let them take their turns, end them.

    Raises:
        AgentZipError: the mode cannot run here, or failed.
    """
    # Of its own: what an engine of an earlier round left in its directory is nobody's business.
    mode = _mode(name, plan, Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place.folder)))
    crew = Crew(
        plan,
        place.data(plan, tell),
        place.places,
        merge=mode.mergeable,
        environment=mode.environment(),
    )
    stage = Stage(plan, mode, mode.at_half)
    with ExitStack() as stack:
        # The sandboxes end first: whoever holds their pages has nothing to bring home then.
        stack.enter_context(mode)
        watch = stack.enter_context(Watch(mode, crew, plan.memory_limit_bytes, stage.halt))
        stack.enter_context(crew)
        mode.start(crew)
        began = time.monotonic()
        _start_all(mode, crew, stage, tell)
        start_s = time.monotonic() - began
        tell("turns")
        oom_kills, cpu, faults = _oom_kills(), mode.cpu(), mode.faults()
        times, page_outs_s = processors.processor_times(), mode.page_outs_s()
        began = time.monotonic()
        watch.playing = True
        played = _play(mode, crew, stage)
        watch.playing = False
        wall_s = time.monotonic() - began
        busy = processors.busy_share(times, processors.processor_times())
        cpu, faults = mode.cpu() - cpu, mode.faults() - faults
        page_outs_s = mode.page_outs_s() - page_outs_s
        watch.stop()
        # A command that fails in one mode only is a finding about the mode.
        if stage.failures and (name == "none" or not plan.command):
            raise InternalError(f"{len(stage.failures)} sandboxes failed: {stage.failures[0]}")
        if not stage.halted.is_set() and not plan.command:
            tell("digests")
            _digest_all(mode, crew, played)
        return ModeRun(
            mode=name,
            played=played,
            memory=watch.run,
            cpu=cpu,
            wall_s=wall_s,
            processors=os.cpu_count() or 1,
            faults=faults,
            oom_kills=_oom_kills() - oom_kills,
            start_s=start_s,
            busy_share=busy or 0.0,
            page_outs_s=max(page_outs_s, 0.0),
            stopped=stage.why_halted,
            notes={**mode.notes(), "failed": stage.failures},
        )


def _start_all(mode: Mode, crew: Crew, stage: Stage, tell: Tell) -> None:
    """Each begins to wait as soon as it is up: so do sandboxes that are started one by one."""
    plan = crew.plan
    while len(crew.members) < crew.plan.sandboxes and not stage.halted.is_set():
        tell(f"starting sandboxes: {len(crew.members)} of {crew.plan.sandboxes}")
        for member in crew.start(AT_ONCE):
            mode.add(member)
            member.waiting = bool(plan.command or plan.workload_of(member.instance).waits_for)
            if member.waiting and not plan.command:
                mode.idle(member)


def _play(mode: Mode, crew: Crew, stage: Stage) -> list[Played]:
    if not crew.plan.command:
        return play(crew, stage)
    if mode.infers:
        return wait_for_commands(crew, stage)
    with IdleWatch(mode, crew):
        return wait_for_commands(crew, stage)


def _digest_all(mode: Mode, crew: Crew, played: list[Played]) -> None:
    def digest(member: Member) -> None:
        into = played[member.instance]
        if member.gone:
            return
        if member.waiting:
            member.waiting = False
            mode.wake(member)
        into.digest = member.sandbox.digest()
        into.finished = True

    crew.for_all(digest)


def _mode(name: str, plan: FanoutPlan, folder: Path) -> Mode:
    makers: dict[str, Callable[[], Mode]] = {
        "none": NoneMode,
        "encode": lambda: EncodeMode(folder),
        "prefetch": lambda: PrefetchMode(folder),
        "full": lambda: FullMode(folder, plan),
        "zram": lambda: ZramMode(folder),
        "zswap": lambda: ZswapMode(folder),
        "ksm": KsmMode,
    }
    return makers[name]()


def _oom_kills() -> int:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _host() -> dict[str, object]:
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "available_bytes": memory.memory_available(),
        "watermarks": dict(WATERMARKS),
        "load_before": os.getloadavg()[0],
    }

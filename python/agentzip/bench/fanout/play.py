"""
Turns: the driver plays the model, or the person, for every sandbox at once, each from a thread of
its own.

    the model thinks ─► writes ─► its answer is there ─► wake ─► recall ─► tool call ─► thinks ...
                                  └───────────── turn ──────────────────┘
                                  └────── wake time ──────┘

That it writes is known `notice_s` before the answer is complete: models stream.
A sandbox that never rests is asked as often as others, and nobody says a word about it.  A command
takes no turns: it is waited for.
"""

import json
import threading
import time
from collections.abc import Callable

from agentzip.bench.fanout.crew import Crew, Member
from agentzip.bench.fanout.modes import Mode, cpu_seconds
from agentzip.bench.fanout.plan import FanoutPlan
from agentzip.bench.fanout.profile import PROFILED, Look
from agentzip.bench.fanout.readings import Played
from agentzip.errors import AgentZipError
from agentzip.host import memory
from agentzip.workloads.crew import Turn

__all__ = ["Stage", "play", "wait_for_commands"]

_JOIN_SECONDS = 0.2
"""The main thread waits in pieces, so that signals are heard."""


class Stage:
    """
    What all players share.

    Args:
        plan: What is run.
        mode: Who is told of waits and wakes.
        at_half: Called once, when half of all turns have been taken.
        heard: Called after each turn, with its number.
    """

    def __init__(
        self,
        plan: FanoutPlan,
        mode: Mode,
        at_half: Callable[[], None],
        heard: Callable[[Member, int, Turn], None] = lambda *_: None,
    ) -> None:
        self.plan = plan
        self.mode = mode
        self.halted = threading.Event()
        """Nobody begins another turn."""
        self.heard = heard
        self.why_halted = ""
        self.failures: list[str] = []
        self._at_half = at_half
        self._taken = 0
        self._counting = threading.Lock()

    def halt(self, reason: str) -> None:
        """End the play; the first reason counts."""
        if not self.halted.is_set():
            self.why_halted = reason
            self.halted.set()

    def count(self) -> None:
        """A turn has been taken."""
        with self._counting:
            self._taken += 1
            due = self._taken == self.plan.turns_total // 2
        if due:
            self._at_half()


def play(crew: Crew, stage: Stage) -> list[Played]:
    """Let every sandbox take its turns; returns when all have, or when the stage is halted."""
    played = [
        Played(member.instance, crew.plan.name_of(member.instance)) for member in crew.members
    ]
    threads = [
        threading.Thread(target=_play_one, args=(stage, member, into), name="player")
        for member, into in zip(crew.members, played, strict=True)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_JOIN_SECONDS)
    except BaseException:
        # Those in the middle of a turn end with their sandboxes.
        stage.halt("interrupted")
        raise
    return played


def wait_for_commands(crew: Crew, stage: Stage) -> list[Played]:
    """Let every command run to its end, or for as long as it may."""
    played = [Played(member.instance, "command") for member in crew.members]
    running = list(zip(crew.members, played, strict=True))
    while running and not stage.halted.wait(_JOIN_SECONDS):
        for member, into in list(running):
            command, now = member.command, time.perf_counter()
            code = command.exit_code()
            if code is None and now < command.began_s + stage.plan.command_s:
                continue
            into.began_s, into.ended_s, into.finished = command.began_s, now, not code
            if code:
                stage.failures.append(
                    f"command {member.instance}: exit code {code}: {command.last_words()}"
                )
            member.gone, member.waiting = code is not None, False
            running.remove((member, into))
    return played


def _play_one(stage: Stage, member: Member, into: Played) -> None:
    try:
        _take_turns(stage, member, into)
    except AgentZipError as error:
        # The sandboxes are ended while turns are taken when the bench is interrupted.
        if not stage.halted.is_set():
            stage.failures.append(f"sandbox {member.instance}: {error}")


def _take_turns(stage: Stage, member: Member, into: Played) -> None:
    plan, mode = stage.plan, stage.mode
    think_s = plan.offset(member.instance)
    turns, workload = plan.turns_of(member.instance), plan.workload_of(member.instance)
    rests = bool(workload.waits_for)
    for number in range(turns):
        notice_s = plan.notice(member.instance, think_s)
        if stage.halted.wait(think_s - notice_s):
            return
        _look(mode, member, into.asleep)
        member.waiting = False
        told = bool(notice_s) and mode.resume(member)
        if notice_s and stage.halted.wait(notice_s):
            return
        started = time.perf_counter()
        if rests and not told:
            mode.wake(member)
        woken = time.perf_counter()
        turn = member.sandbox.turn(number, plan.choice(member.instance, number))
        ended = time.perf_counter()
        if number == 0:
            into.began_s = started
        into.ended_s = ended
        into.homes_s.append(woken - started)
        into.wakes_s.append(woken - started + turn.recall_s)
        into.turns_s.append(ended - started)
        into.said.append(json.dumps([turn.recalled, turn.answer], sort_keys=True))
        into.checks_wrong += len(turn.answer["wrong"])
        _look(mode, member, into.awake)
        stage.count()
        stage.heard(member, number, turn)
        member.finished = number == turns - 1
        stays = not (member.finished and workload.leaves)
        if rests and stays:
            member.waiting = True
            mode.idle(member)
        if (habits := mode.habits(member)) is not None:
            into.habits.append(habits)
        if not stays:
            into.digest = member.sandbox.digest()
            member.sandbox.leave()
            member.gone = into.finished = True
        # What was said to the mode took time of the model's.
        think_s = max(0.0, plan.think(member.instance, number) - (time.perf_counter() - ended))


def _look(mode: Mode, member: Member, into: list[Look]) -> None:
    """Look at one of the first sandboxes; it takes time of the model's, not of a turn's."""
    if member.instance < PROFILED:
        pids = member.pids()
        use = memory.sum_use(pids)
        look = Look(
            rss=use.rss,
            pss=use.pss,
            private=use.private_dirty,
            processes=len(pids),
            cpu_s=sum(map(cpu_seconds, pids)),
            pages=mode.pages(member),
        )
        into.append(look)

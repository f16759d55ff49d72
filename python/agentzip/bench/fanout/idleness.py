"""
When does a command wait?  Told from outside, for modes that do not see it by themselves.

    running ── quiet for a while ─► told idle ── quiet again ─► idle ── at work ─► told awake
       ▲                                                                              │
       └──────────────────────────────────────────────────────────────────────────────┘

Quiet is what takes little processor time, by the control group's own account.  Paging out runs on
the sandbox's account, so a wake is looked for only when it has become quiet again.
"""

import threading
from pathlib import Path

from agentzip.bench.fanout.crew import Crew, Member
from agentzip.bench.fanout.modes import Mode
from agentzip.children import Stoppable

__all__ = ["IdleWatch", "Idleness"]

_LOOK_SECONDS = 0.5

_QUIET_SHARE = 0.03
"""Of one processor: frameworks tick while they wait."""

_QUIET_LOOKS = 4
"""In a row: shorter waits are not worth a page out, and nobody knows how long this one lasts."""

_AWAKE_SHARE = 0.10
"""Between the two nothing is decided."""


class Idleness:
    """One sandbox, look by look."""

    def __init__(self) -> None:
        self.idle = False
        """It was told to be idle last."""
        self._quiet = 0

    def look(self, share: float) -> bool:
        """
        Take in how much of one processor it took since the last look; whether `idle` changed.
        """
        if share < _QUIET_SHARE:
            self._quiet += 1
        if not self.idle:
            if share >= _QUIET_SHARE:
                self._quiet = 0
            changed = self._quiet >= _QUIET_LOOKS
        else:
            # `_quiet` is 0 until the page out is over.
            changed = self._quiet > 0 and share > _AWAKE_SHARE
        if changed:
            self.idle, self._quiet = not self.idle, 0
        return changed


class IdleWatch(Stoppable):
    """Tells a mode of the waits and wakes of all commands until it is stopped."""

    def __init__(self, mode: Mode, crew: Crew) -> None:
        self._mode, self._crew = mode, crew
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idleness")
        self._thread.start()

    def stop(self) -> None:
        """End the watch; twice does no harm."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        found = {one.instance: Idleness() for one in self._crew.members}
        before = {one.instance: _processor_s(one.group) for one in self._crew.members}
        while not self._stopping.wait(_LOOK_SECONDS):
            for member in self._crew.members:
                now = _processor_s(member.group)
                share = (now - before[member.instance]) / _LOOK_SECONDS
                before[member.instance] = now
                if not member.gone and found[member.instance].look(share):
                    self._tell(member, idle=found[member.instance].idle)

    def _tell(self, member: Member, *, idle: bool) -> None:
        if idle:
            self._mode.idle(member)
        else:
            self._mode.wake(member)


def _processor_s(group: Path) -> float:
    line = (group / "cpu.stat").read_text().split("\n", 1)[0]
    return int(line.split()[1]) / 1e6

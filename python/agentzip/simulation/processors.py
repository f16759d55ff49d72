"""
Who gets how much of a host's cores: weighted processor sharing.  Pure.

Jobs that run at the same time share the cores by weight, none more than it can use; what one leaves
the others have.  That is what the kernel's fair scheduler does over times longer than a slice.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

__all__ = ["BACKGROUND", "Job", "Processors"]

BACKGROUND = 0.1
"""Weight of a thread at nice 10, where encode threads run, beside an ordinary one."""

_DONE_S = 1e-9
"""Work that is as good as none: sums of floats do not end at zero."""


@dataclass(slots=True, eq=False)
class Job:
    """Work for the processors."""

    work_s: float
    """Seconds of one core that are left."""
    done: Callable[[], None]
    cores: float = 1.0
    """Most that it can use at once."""
    weight: float = 1.0
    own: bool = False
    """AgentZip's."""
    total_s: float = 0.0
    rate: float = field(default=0.0, init=False)
    """Cores that it has now."""

    def __post_init__(self) -> None:
        self.total_s = self.work_s

    @property
    def share_done(self) -> float:
        """Of all its work, 0 to 1."""
        return 1.0 - self.work_s / self.total_s if self.total_s > 0 else 1.0


class Processors:
    """
    The cores of one host.

    Args:
        cores: How many.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.now = 0.0
        self.own_s = 0.0
        """Seconds that AgentZip took."""
        self.others_s = 0.0
        self._jobs: dict[Job, None] = {}
        self._stale = False

    def add(self, job: Job) -> Job:
        """Begin a job now."""
        self._jobs[job] = None
        self._stale = True
        return job

    def drop(self, job: Job) -> None:
        """End a job early, or do nothing if it is over."""
        if self._jobs.pop(job, self) is None:
            self._stale = True

    def next_at(self) -> float:
        """When the next job ends, if nothing changes; infinity without one."""
        self._divide()
        ends = (job.work_s / job.rate for job in self._jobs if job.rate > 0)
        return self.now + max(min(ends, default=inf), 0.0)

    def advance(self, until: float) -> list[Job]:
        """Work until a time that is not after `next_at`; returns the jobs that end then."""
        self._divide()
        elapsed = until - self.now
        self.now = until
        ended = []
        for job in self._jobs:
            taken = min(job.rate * elapsed, job.work_s)
            job.work_s -= taken
            if job.own:
                self.own_s += taken
            else:
                self.others_s += taken
            if job.work_s <= _DONE_S:
                ended.append(job)
        for job in ended:
            self.drop(job)
        return ended

    def _divide(self) -> None:
        """Give each job its part: those that can use less than their share first."""
        if not self._stale:
            return
        self._stale = False
        left, weight = float(self.cores), sum(job.weight for job in self._jobs)
        for job in sorted(self._jobs, key=lambda job: job.cores / job.weight):
            job.rate = min(job.cores, left * job.weight / weight) if left > 0 else 0.0
            left -= job.rate
            weight -= job.weight

"""
The memory of one simulated host: what is used, the most and the mean of it, and who may have more.

Memory is given before it is used, so a host with AgentZip never uses more than it has: who does not
get any waits.  Wakes are let in by `policy.breakers.admit`, as the daemon does.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agentzip.policy import breakers

__all__ = ["FLOOR_BYTES", "Admission", "Book"]

FLOOR_BYTES = 256 * 2**20
"""Free memory that wakes leave to the host, as in the daemon."""


class Book:
    """
    Bytes in use over time.

    Args:
        limit_bytes: What the host has.
        fixed_bytes: Used by others, all the time.
    """

    def __init__(self, limit_bytes: int, fixed_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = float(fixed_bytes)
        self.peak_bytes = self.used_bytes
        """The most since the last call of `begin`."""
        self.most_bytes = self.used_bytes
        """The most ever."""
        self._fixed_bytes = fixed_bytes
        self._parts: dict[object, float] = {}
        self._began = self._at = 0.0
        self._sum = 0.0

    @property
    def free_bytes(self) -> float:
        """What can still be given."""
        return self.limit_bytes - self.used_bytes

    def set(self, part: object, size: float, now: float) -> None:
        """Say how much a part of the host uses from now on."""
        self._follow(now)
        self.used_bytes += size - self._parts.get(part, 0.0)
        self._parts[part] = size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    def begin(self, now: float) -> None:
        """From here on count mean and peak."""
        self._began = self._at = now
        self._sum = 0.0
        self.peak_bytes = self.used_bytes

    def mean_bytes(self, now: float) -> float:
        """Mean since `begin`, what others use left out."""
        self._follow(now)
        length = now - self._began
        return (self._sum / length if length > 0 else self.used_bytes) - self._fixed_bytes

    def _follow(self, now: float) -> None:
        self._sum += self.used_bytes * (now - self._at)
        self._at = now


@dataclass(slots=True)
class _Waiting:
    wake: breakers.Wake
    begin: Callable[[], None]


class Admission:
    """
    Wakes that wait for memory.

    Args:
        book: The host's memory.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, name: str, pages: int, now: float, begin: Callable[[], None]) -> None:
        """Let `begin` be called when so many pages may come home; it must book them at once."""
        self._waiting[name] = _Waiting(breakers.Wake(name, pages, now), begin)
        self.look()

    def look(self) -> None:
        """Let in who fits now, in the order in which they came."""
        wakes = [one.wake for one in self._waiting.values()]
        if not wakes:
            return
        admitted = breakers.admit(wakes, int(self._book.free_bytes), FLOOR_BYTES)
        for wake in admitted:
            if wake.pages == self._waiting[wake.sandbox].wake.pages:
                self._waiting.pop(wake.sandbox).begin()

"""
What is run: how many sandboxes of which size, how long they think, what they are asked.

Think times and questions follow from the seed, the sandbox and the turn alone, so that every mode
and every round has the same.
"""

from dataclasses import dataclass

from agentzip.bench.fanout import think
from agentzip.errors import InvalidSetting
from agentzip.units import format_bytes
from agentzip.workloads.crew import TURNING

__all__ = ["MODES", "WATERMARKS", "FanoutPlan"]

MODES = ("none", "encode", "prefetch", "full", "zram", "zswap", "ksm")
"""In the order of running."""

WATERMARKS = {"start": 2, "stop": 1, "between_percent": 10}
"""`policy.watermarks` of `full`: as on a host that is full; with the default ones nothing would
have to leave."""

_MIB = 2**20
_SIZES = {
    "A": (264 * _MIB, 45 * _MIB),
    "B": (81 * _MIB, 55 * _MIB),
    "C": (870 * _MIB, 680 * _MIB),
    "D": (62 * _MIB, 100 * _MIB),
}
"""RSS of a sandbox: what its programs take, and what comes with each 1.0 of data (measured)."""

_DEFAULT_SIZES = {"A": 320 * _MIB, "B": 200 * _MIB, "C": 1536 * _MIB, "D": 200 * _MIB}

_SIZE_MIN, _SIZE_MAX = 0.05, 60.0
"""Of the data: below, a workload has nothing to work on; above, the data files take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutPlan:
    """One run; checked when made."""

    workload: str = "A"
    sandboxes: int = 8
    turns: int = 6
    modes: tuple[str, ...] = ("none", "encode", "prefetch", "full")
    """`none` is run in any case: it is what all others are compared with."""
    think_s: float = 15.0
    """Mean time that the model takes to answer."""
    size_bytes: int = 0
    """RSS of a sandbox that has loaded its data; 0 is the workload's default."""
    seed: int = 1
    rounds: int = 1
    kill_daemon: bool = False
    """`full`: kill -9 of the daemon in the middle, and a restart."""
    latency_target_s: float | None = None
    """`full`: the configuration's `policy.latency_target`; None leaves its default."""
    memory_limit_bytes: int = 0
    """A run whose host memory goes beyond it is ended early; 0 is no limit."""

    def __post_init__(self) -> None:
        if self.workload not in TURNING:
            raise InvalidSetting(
                f"workload is not known: {self.workload}", f"choose from {', '.join(TURNING)}"
            )
        unknown = [name for name in self.modes if name not in MODES]
        if unknown or not self.modes:
            raise InvalidSetting(
                f"mode is not known: {', '.join(unknown) or 'none given'}",
                f"choose from {', '.join(MODES)}",
            )
        if self.kill_daemon and "full" not in self.modes:
            raise InvalidSetting("kill-daemon has no daemon to kill", "add full to --mode")
        self._check("sandboxes", self.sandboxes, 1, 1000)
        self._check("turns", self.turns, 1, 1000)
        self._check("rounds", self.rounds, 1, 20)
        self._check("think", self.think_s, 0.0, 3600.0)
        if self.size_bytes and not _SIZE_MIN <= self.data_size <= _SIZE_MAX:
            fixed, each = _SIZES[self.workload]
            low, high = (fixed + each * edge for edge in (_SIZE_MIN, _SIZE_MAX))
            raise InvalidSetting(
                f"size is out of range for workload {self.workload}: "
                f"{format_bytes(self.size_bytes)}",
                f"give {format_bytes(low)} to {format_bytes(high)}; less is what its programs take",
            )

    @staticmethod
    def _check(field: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            raise InvalidSetting(
                f"{field} is out of range: {value:g}", f"give a value from {low:g} to {high:g}"
            )

    @property
    def rss_bytes(self) -> int:
        """RSS that a sandbox is to have."""
        return self.size_bytes or _DEFAULT_SIZES[self.workload]

    @property
    def data_size(self) -> float:
        """The same as the `size` of its data."""
        fixed, each = _SIZES[self.workload]
        return (self.rss_bytes - fixed) / each

    @property
    def chosen(self) -> list[str]:
        """The modes in the order of running, `none` first."""
        return [name for name in MODES if name in self.modes or name == "none"]

    def think(self, instance: int, turn: int) -> float:
        """Seconds that the model takes before a turn of a sandbox; lognormal, mean `think_s`."""
        return think.think_s(self.seed, self.think_s, instance, turn)

    def offset(self, instance: int) -> float:
        """Seconds before a sandbox's first turn: sandboxes do not march in step."""
        return think.offset_s(self.seed, self.think_s, instance)

    def choice(self, instance: int, turn: int) -> int:
        """What the model answers: a number below 2^31 that the tool call follows from."""
        return think.chance(self.seed, "choice", instance, turn).getrandbits(31)

    @property
    def turns_total(self) -> int:
        """Of all sandboxes together."""
        return self.sandboxes * self.turns

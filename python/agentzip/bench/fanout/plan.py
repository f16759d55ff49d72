"""
What is run: how many sandboxes of which size, how long they think, what they are asked.

Think times and questions follow from the seed, the sandbox and the turn alone, so that every mode
and every round has the same.
"""

from dataclasses import dataclass

from agentzip.bench.fanout import think
from agentzip.errors import InvalidSetting
from agentzip.units import format_bytes
from agentzip.workloads.catalogue import WORKLOADS, Workload

__all__ = ["CODECS", "MODES", "WATERMARKS", "FanoutPlan"]

MODES = ("none", "encode", "prefetch", "full", "zram", "zswap", "ksm")
"""In the order of running."""

WATERMARKS = {"start": 2, "stop": 1, "between_percent": 10}
"""`policy.watermarks` of `full`: as on a host that is full; with the default ones nothing would
have to leave."""

# A cold page is encoded anew with zstd 9: a codec that is to be seen alone must be spared that.
_ALONE: dict[str, dict[str, object]] = {"policy": {"cold_grace_period": "168h"}}

CODECS: dict[str, dict[str, dict[str, object]]] = {
    "lz4": {**_ALONE, "compression": {"algorithm": "lz4", "dictionary": "none"}},
    "zstd-3": {**_ALONE, "compression": {"algorithm": "zstd", "level": 3, "dictionary": "none"}},
    "zstd-9": {**_ALONE, "compression": {"algorithm": "zstd", "level": 9, "dictionary": "none"}},
    "pipeline": {},
}
"""Codec -> the daemon's configuration for it; `pipeline` is what the daemon does by default."""

_SIZE_MIN, _SIZE_MAX = 0.05, 60.0
"""Of the data: below, a workload has nothing to work on; above, the data files take minutes."""

_PERSON_FACTOR = 8.0
"""A person takes so many times as long as the model, and is asked in as many turns less."""

_COMMAND_BYTES = 2**30
"""RSS of a command if nobody says how large it is: it bounds pools and swap, which are made for
twice as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutPlan:
    """One run; checked when made."""

    workload: str = "A"
    """One of `WORKLOADS`, or several with commas: the sandboxes are dealt out to them in turn."""
    command: tuple[str, ...] = ()
    """Run this instead of a workload; it takes no turns that the bench would know of."""
    command_s: float = 60.0
    """How long a command may run; one that still runs then is ended."""
    sandboxes: int = 8
    turns: int = 6
    modes: tuple[str, ...] = ("none", "encode", "prefetch", "full")
    """`none` is run in any case: it is what all others are compared with."""
    think_s: float = 15.0
    """Mean time that the model takes to answer."""
    notice_s: float = 1.0
    """Of it, how long the answer is written before it is complete: whoever passes it on knows so
    long before that the sandbox goes on.  A person gives no notice."""
    size_bytes: int = 0
    """RSS of a sandbox that has loaded its data; 0 is the workload's default."""
    seed: int = 1
    rounds: int = 1
    kill_daemon: bool = False
    """`full`: kill -9 of the daemon in the middle, and a restart."""
    latency_target_s: float | None = None
    """`full`: the configuration's `policy.latency_target`; None leaves its default."""
    codec: str = "pipeline"
    """`full`: which of `CODECS` the daemon encodes with."""
    memory_limit_bytes: int = 0
    """A run whose host memory goes beyond it is ended early; 0 is no limit."""

    def __post_init__(self) -> None:
        strange = [name for name in self.names if name not in WORKLOADS]
        if strange:
            raise InvalidSetting(
                f"workload is not known: {', '.join(strange)}",
                f"choose from {', '.join(WORKLOADS)}",
            )
        unknown = [name for name in self.modes if name not in MODES]
        if unknown or not self.modes:
            raise InvalidSetting(
                f"mode is not known: {', '.join(unknown) or 'none given'}",
                f"choose from {', '.join(MODES)}",
            )
        if self.codec not in CODECS:
            raise InvalidSetting(
                f"codec is not known: {self.codec}", f"choose from {', '.join(CODECS)}"
            )
        if self.kill_daemon and "full" not in self.modes:
            raise InvalidSetting("kill-daemon has no daemon to kill", "add full to --mode")
        if self.kill_daemon and self.command:
            raise InvalidSetting(
                "kill-daemon comes after half of all turns, and a command takes none",
                "leave out one of the two",
            )
        self._check("sandboxes", self.sandboxes, 1, 1000)
        self._check("turns", self.turns, 1, 1000)
        self._check("rounds", self.rounds, 1, 20)
        self._check("think", self.think_s, 0.0, 3600.0)
        self._check("notice", self.notice_s, 0.0, 3600.0)
        self._check("for", self.command_s, 1.0, 86_400.0)
        for name in self.names if self.size_bytes and not self.command else ():
            self._check_size(name)

    def _check_size(self, name: str) -> None:
        one = WORKLOADS[name]
        if not _SIZE_MIN <= one.data_size(self.size_bytes) <= _SIZE_MAX:
            low, high = (one.fixed_bytes + one.each_bytes * edge for edge in (_SIZE_MIN, _SIZE_MAX))
            raise InvalidSetting(
                f"size is out of range for workload {name}: {format_bytes(self.size_bytes)}",
                f"give {format_bytes(low)} to {format_bytes(high)}; less is what its programs take",
            )

    @staticmethod
    def _check(field: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            raise InvalidSetting(
                f"{field} is out of range: {value:g}", f"give a value from {low:g} to {high:g}"
            )

    @property
    def names(self) -> list[str]:
        """The workloads of the run; there is always one, even if a command runs instead."""
        return [name.strip() for name in self.workload.split(",")]

    def name_of(self, instance: int) -> str:
        """Name of the workload of a sandbox."""
        return self.names[instance % len(self.names)]

    def workload_of(self, instance: int) -> Workload:
        """The workload of a sandbox."""
        return WORKLOADS[self.name_of(instance)]

    def data_size(self, instance: int) -> float:
        """The `size` of a sandbox's data."""
        one = self.workload_of(instance)
        return one.data_size(self.size_bytes or one.default_bytes)

    @property
    def rss_bytes(self) -> int:
        """RSS that all sandboxes are to have together, after their start."""
        if self.command:
            return self.sandboxes * (self.size_bytes or _COMMAND_BYTES)
        default = (self.workload_of(one).default_bytes for one in range(self.sandboxes))
        return self.sandboxes * self.size_bytes or sum(default)

    def turns_of(self, instance: int) -> int:
        """
        Turns that a sandbox takes.

        Half of them if it leaves; fewer, but two, if it waits for a person.
        """
        one = self.workload_of(instance)
        if one.waits_for == "user":
            return max(min(self.turns, 2), int(self.turns / _PERSON_FACTOR))
        return (self.turns + 1) // 2 if one.leaves else self.turns

    @property
    def chosen(self) -> list[str]:
        """The modes in the order of running, `none` first."""
        return [name for name in MODES if name in self.modes or name == "none"]

    def think(self, instance: int, turn: int) -> float:
        """
        Seconds that a sandbox waits after a turn; lognormal, mean `think_s` for the model.

        One that never rests is asked as often as others.
        """
        factor = _PERSON_FACTOR if self.workload_of(instance).waits_for == "user" else 1.0
        return think.think_s(self.seed, factor * self.think_s, instance, turn)

    def notice(self, instance: int, wait_s: float) -> float:
        """Of a wait, the seconds before its end at which its end is known."""
        told = self.workload_of(instance).waits_for == "model"
        return min(self.notice_s, wait_s) if told else 0.0

    def offset(self, instance: int) -> float:
        """Seconds before a sandbox's first turn: sandboxes do not march in step."""
        return think.offset_s(self.seed, self.think_s, instance)

    def choice(self, instance: int, turn: int) -> int:
        """What the model answers: a number below 2^31 that the tool call follows from."""
        return think.chance(self.seed, "choice", instance, turn).getrandbits(31)

    @property
    def turns_total(self) -> int:
        """Of all sandboxes together."""
        return sum(self.turns_of(instance) for instance in range(self.sandboxes))

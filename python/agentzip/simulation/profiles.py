"""
What one sandbox takes, from the JSON that `agentzip bench fanout --json` writes.  Pure.

A profile joins two modes of one run: `none` says what the turns and the memory are, the mode itself
what leaves, what comes back, and what that costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import Any

from agentzip.errors import InvalidSetting
from agentzip.policy.planner import Costs
from agentzip.policy.prices import PAGE_BYTES
from agentzip.workloads.catalogue import WORKLOADS

__all__ = ["MODES", "Measured", "Profile", "Quantiles", "Return", "number", "profiles_of"]

MODES = ("none", "encode", "prefetch", "full")
"""Modes that can be simulated; the kernel's own ways keep no books to start from."""

_SIMULATED = [
    name for name, one in WORKLOADS.items() if one.waits_for == "model" and not one.leaves
]
"""Agents that take all turns of a plan, with its think times; a mix has no one profile."""

_LATENCY_TARGET_S = 0.02
"""`policy.latency_target` where the plan of a run leaves its default."""

_CORES_MIN = 0.02
"""What is at work keeps at least so much of a core busy: less is a reading of next to nothing."""

_AGAIN = "run `agentzip bench fanout --mode none,full --json --out FILE` with this version"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution, as its sorted values; drawn from by a number between 0 and 1."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quantiles":
        """From values in any order, at least one."""
        return cls(tuple(sorted(values)))

    def at(self, share: float) -> float:
        """The value below which this share is; straight lines between what was measured."""
        place = share * (len(self.values) - 1)
        low = min(int(place), len(self.values) - 1)
        high = min(low + 1, len(self.values) - 1)
        return self.values[low] + (place - low) * (self.values[high] - self.values[low])

    @property
    def mean(self) -> float:
        """Of the values."""
        return fmean(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """What one kind of turn brings home, in pages, and how long its two parts took."""

    rest_out_pages: float
    """Out before it, without what was brought home by prefetch."""
    faulted_pages: float
    """Of them, back by faults, with all that a fault brings along."""
    recall_s: Quantiles
    tool_s: Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One sandbox in one mode; memory without what it shares with its like."""

    workload: str
    mode: str
    latency_target_s: float
    shared_bytes: int
    """Shared by all sandboxes of the workload: once on a host."""
    stay_pages: int
    """Never leave."""
    movable_pages: int
    learned_pages: int
    """Of them, what a wake needs, once the first one has told."""
    pool_page_bytes: float
    """What a page takes in the pool."""
    table_bytes: int
    overhead_bytes: int
    """Daemon and keeper: once on a host."""
    first: Return
    later: Return
    plain_first: Return
    """The same turns without AgentZip."""
    plain_later: Return
    home_fixed_s: float
    """Of a wake, what does not depend on its pages."""
    restore_s: float
    """Bringing a page home before a wake, on one core."""
    encode_s: float
    """Paging a page out for the first time, in seconds of one core."""
    again_s: float
    """Paging a page out that was home for a turn; those that were not written cost little."""
    leave_cores: float
    """Cores that a page out keeps busy: how much longer than its work it takes."""
    upkeep_cores: float
    """What AgentZip works for a sandbox all the time beside that: looking, dictionaries, tiers."""
    turn_cores: float
    """Cores that a turn keeps busy."""
    start_s: float
    """Until a sandbox is up, on one core."""

    @property
    def whole_pages(self) -> int:
        """Memory of its own with everything at home."""
        return self.stay_pages + self.movable_pages

    @property
    def ratio(self) -> float:
        """Bytes of memory for one byte of the pool."""
        return PAGE_BYTES / self.pool_page_bytes if self.pool_page_bytes else 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One JSON object of the bench: its parts, by name."""

    plan: Mapping[str, Any]
    host: Mapping[str, Any]
    modes: Mapping[str, Mapping[str, Any]]
    name: str
    """Of the file, for messages."""

    @classmethod
    def of(cls, value: object, name: str) -> "Measured":
        """
        Check the outline of an object.

        Raises:
            InvalidSetting: it is no result of `bench fanout`, or of an older version.
        """
        if not isinstance(value, dict):
            raise InvalidSetting(f"{name} is not a JSON object", _AGAIN)
        plan, host, modes = (value.get(key) for key in ("plan", "host", "modes"))
        if not isinstance(plan, dict):
            raise InvalidSetting(f"{name}: plan is missing", _AGAIN)
        if not isinstance(host, dict):
            raise InvalidSetting(f"{name}: host is missing", _AGAIN)
        named = [one for one in modes if isinstance(one, dict)] if isinstance(modes, list) else []
        found = {str(one.get("mode")): one for one in named}
        if "none" not in found:
            raise InvalidSetting(f"{name}: modes has no mode none", _AGAIN)
        if plan.get("command") or plan.get("workload") not in _SIMULATED:
            raise InvalidSetting(
                f"{name}: plan.workload is {plan.get('command') or plan.get('workload')!r}",
                f"give a run of one workload: {', '.join(_SIMULATED)}",
            )
        return cls(plan, host, found, name)

    def number(self, path: str, low: float = 0.0) -> float:
        """
        A number of the plan or the host, like `plan.sandboxes`.

        Raises:
            InvalidSetting: it is missing, no number, or too small.
        """
        part, key = path.split(".")
        return number(getattr(self, part), key, f"{self.name}: {path}", low)

    @property
    def workload(self) -> str:
        """Which workload was run."""
        return str(self.plan.get("workload", ""))

    @property
    def latency_target_s(self) -> float:
        """What a wake was allowed to cost."""
        if self.plan.get("latency_target_s") is None:
            return _LATENCY_TARGET_S
        return self.number("plan.latency_target_s")


def number(values: object, key: str, what: str, low: float = 0.0) -> float:
    """
    One number out of a JSON object.

    Raises:
        InvalidSetting: it is missing, no number, or below `low`.
    """
    value = values.get(key) if isinstance(values, Mapping) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise InvalidSetting(f"{what} is missing or no number: {value!r}", _AGAIN)
    if value < low:
        raise InvalidSetting(f"{what} is too small: {value:g}", f"it must be {low:g} or more")
    return float(value)


def profiles_of(measured: Measured) -> dict[str, Profile]:
    """
    The profile of each mode of a run that can be simulated.

    Raises:
        InvalidSetting: a figure that is needed is missing or cannot be; it is named.
    """
    return {mode: _Reading(measured, mode).profile for mode in MODES if mode in measured.modes}


class _Reading:
    """One mode of one run, taken apart."""

    def __init__(self, measured: Measured, mode: str) -> None:
        self._measured, self._mode = measured, mode
        self._sandboxes = int(measured.number("plan.sandboxes", 1))
        self._turns = self._sandboxes * int(measured.number("plan.turns", 2))
        # What the processes of one sandbox share with each other cannot be told from what they
        # share with other sandboxes: of several processes PSS counts, and nothing is shared.
        self._single = self._number("none", "processes") <= 1
        self._shared = 0
        if self._single:
            pss, private = (self._number("none", f"{k}_asleep_bytes") for k in ("pss", "private"))
            self._shared = int(self._sandboxes * max(pss - private, 0.0))

    @property
    def profile(self) -> Profile:
        """All of it."""
        mode = self._mode
        asleep, awake = self._pages("later", "asleep"), self._pages("later", "awake")
        home = max(asleep["out"] - awake["out"], 0.0)
        prefetched = min(max(awake["prefetched"] - asleep["prefetched"], 0.0), home)
        learned = int(asleep["learned"]) if mode in {"prefetch", "full"} else 0
        costs = Costs()
        whole, stay = self._private_pages("none", "awake"), self._stay_pages()
        stored = fmean([asleep["out"] + asleep["kept"], awake["out"] + awake["kept"]])
        pool = number(self._of(mode), "pool_bytes", self._name("pool_bytes"))
        fixed_s, restore_s = self._home_times(prefetched)
        cpu_s = number(self._of(mode), "cpu_s", self._name("cpu_s")) / self._turns
        wall_s = number(self._of(mode), "wall_s", self._name("wall_s"), 0.001)
        home_s = prefetched * costs.restore_batched_s + (home - prefetched) * costs.restore_fault_s
        again_s = costs.move_s
        if home:
            again_s = min(max((cpu_s - home_s) / home, costs.move_s), costs.encode_s)
        upkeep_s = max(cpu_s - home_s - home * again_s, 0.0) if mode != "none" else 0.0
        return Profile(
            workload=self._measured.workload,
            mode=mode,
            latency_target_s=self._measured.latency_target_s,
            shared_bytes=self._shared,
            stay_pages=whole if mode == "none" else stay,
            movable_pages=0 if mode == "none" else whole - stay,
            learned_pages=learned,
            pool_page_bytes=pool / (self._sandboxes * stored) if stored else 0.0,
            table_bytes=int(self._number(mode, "tables_bytes") / self._sandboxes),
            overhead_bytes=int(self._number(mode, "overhead_bytes")),
            first=self._return(mode, "first"),
            later=self._return(mode, "later"),
            plain_first=self._return("none", "first"),
            plain_later=self._return("none", "later"),
            home_fixed_s=fixed_s,
            restore_s=restore_s,
            encode_s=costs.encode_s,
            again_s=again_s,
            leave_cores=self._leave_cores(home * again_s),
            upkeep_cores=upkeep_s * self._turns / (self._sandboxes * wall_s),
            turn_cores=self._turn_cores(),
            start_s=self._start_s(),
        )

    def _of(self, mode: str) -> Mapping[str, Any]:
        return self._measured.modes[mode]

    def _name(self, key: str, mode: str = "") -> str:
        return f"{self._measured.name}: {key} of mode {mode or self._mode}"

    def _number(self, mode: str, key: str, low: float = 0.0) -> float:
        name = self._name(f"profile.{key}", mode)
        return number(self._of(mode).get("profile"), key, name, low)

    def _pages(self, when: str, state: str) -> dict[str, float]:
        profile = self._of(self._mode).get("profile")
        turn = profile.get(when) if isinstance(profile, Mapping) else None
        found = turn.get(state) if isinstance(turn, Mapping) else None
        keys = ("out", "kept", "learned", "prefetched")
        return {
            key: number(found, key, self._name(f"profile.{when}.{state}.{key}")) for key in keys
        }

    def _private_pages(self, mode: str, state: str) -> int:
        """Resident memory of its own."""
        kind = "private" if self._single else "pss"
        return int(self._number(mode, f"{kind}_{state}_bytes") / PAGE_BYTES)

    def _stay_pages(self) -> int:
        """What never leaves: what stayed in the mode in which the most left."""
        modes = [mode for mode in MODES if mode in self._measured.modes]
        return min(self._private_pages(mode, "asleep") for mode in modes)

    def _times(self, mode: str) -> list[Mapping[str, Any]]:
        profile = self._of(mode).get("profile")
        turns = profile.get("turns") if isinstance(profile, Mapping) else None
        if not isinstance(turns, list) or not turns:
            raise InvalidSetting(f"{self._name('profile.turns', mode)} is missing", _AGAIN)
        return turns

    def _column(self, mode: str, key: str, when: str) -> list[float]:
        name = self._name(f"profile.turns.{key}", mode)
        chosen = [
            number(one, key, name)
            for one in self._times(mode)
            if (number(one, "turn", name) == 0) == (when == "first")
        ]
        if not chosen:
            raise InvalidSetting(
                f"{name}: no {'first' if when == 'first' else 'second'} turn", "run with --turns 4"
            )
        return chosen

    def _return(self, mode: str, when: str) -> Return:
        rest_out = faulted = 0.0
        if mode != "none":
            asleep, awake = self._pages(when, "asleep"), self._pages(when, "awake")
            brought = max(awake["prefetched"] - asleep["prefetched"], 0.0)
            faulted = max(asleep["out"] - awake["out"] - brought, 0.0)
            rest_out = max(asleep["out"] - brought, 0.0)
        return Return(
            rest_out_pages=rest_out,
            faulted_pages=faulted,
            recall_s=Quantiles.of(self._column(mode, "recall_s", when)),
            tool_s=Quantiles.of(self._column(mode, "tool_s", when)),
        )

    def _home_times(self, prefetched: float) -> tuple[float, float]:
        """What a wake takes in any case (the first one brings nothing), and for each page more."""
        if self._mode == "none":
            return 0.0, 0.0
        fixed_s = min(self._column(self._mode, "home_s", "first"))
        if self._measured.number("plan.notice_s"):
            # Most of it came home before the answer, unseen by any clock.
            return fixed_s, Costs().restore_batched_s
        home_s = fmean(self._column(self._mode, "home_s", "later"))
        if not prefetched:
            return fixed_s, Costs().restore_batched_s
        return min(fixed_s, home_s), max(home_s - fixed_s, 0.0) / prefetched

    def _leave_cores(self, work_s: float) -> float:
        """Cores of a page out, from the work of the page outs of a turn and how long they took."""
        cores = self._measured.number("host.cpus", 1)
        taken_s = self._number(self._mode, "page_outs_s") / self._turns
        return min(max(work_s / taken_s, _CORES_MIN), cores) if taken_s else cores

    def _turn_cores(self) -> float:
        turns = self._times("none")
        name = self._name("profile.turns", "none")
        taken = fmean(number(t, "recall_s", name) + number(t, "tool_s", name) for t in turns)
        cores = self._number("none", "turn_cpu_s") / taken if taken else 1.0
        return min(max(cores, _CORES_MIN), self._measured.number("host.cpus", 1))

    def _start_s(self) -> float:
        cores = int(self._measured.number("host.cpus", 1))
        batches = -(-self._sandboxes // cores)
        return self._number("none", "start_s") / batches

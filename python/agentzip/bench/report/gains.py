"""
What a host gained, counted in two ways, and what lies between them: pure.

`host_gain` is what MemAvailable says, `pss_gain` what adding up processes says.  Between them lies
what only one of them sees: memory of the kernel (no PSS has it), files (MemAvailable counts them as
free), other programs, and a rest that is small on a quiet host.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentzip.bench.report.blocks import Table
from agentzip.units import format_bytes

__all__ = ["PERCENT_MAX", "Gap", "gap_of", "gaps_table"]

PERCENT_MAX = 5.0
"""A difference above this is explained."""

_PARTS = {
    "kernel": "memory of the kernel",
    "files": "pages of files",
    "others": "memory of other programs",
    "rest": "rest",
}

_KERNEL_HELD = {"zram", "zswap", "ksm"}
"""Modes whose pool and tables are no program's."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Both gains of one mode against mode none, in bytes; the four parts add up to the gap."""

    host: int
    pss: int
    kernel: int
    files: int
    others: int

    @property
    def bytes(self) -> int:
        """How much more MemAvailable says."""
        return self.host - self.pss

    @property
    def parts(self) -> dict[str, int]:
        """What lies between the two."""
        named = {"kernel": self.kernel, "files": self.files, "others": self.others}
        return {**named, "rest": self.bytes - sum(named.values())}

    @property
    def percent(self) -> float | None:
        """Of the gain by accounting; None where that is nothing."""
        return 100 * self.bytes / abs(self.pss) if self.pss else None

    @property
    def explanation(self) -> str:
        """What the difference is made of, where it is large; empty where it is not."""
        if self.percent is None or abs(self.percent) <= PERCENT_MAX:
            return ""
        name, size = max(self.parts.items(), key=lambda part: abs(part[1]))
        return f"mostly {_PARTS[name]}: {format_bytes(size)}"


def gap_of(figures: Mapping[str, Any], none: Mapping[str, Any]) -> Gap | None:
    """The two gains of a mode; None for a result without what lies between them."""
    made, before = figures.get("made_of"), none.get("made_of")
    if not made or not before:
        return None
    return Gap(
        host=figures["host_gain_bytes"],
        pss=figures["pss_gain_bytes"],
        kernel=before["kernel"] - made["kernel"],
        # Counted by PSS alone, so a file page less is a gain that MemAvailable does not know.
        files=_files(made) - _files(before),
        others=_of_others(before, "none") - _of_others(made, figures["mode"]),
    )


def _files(made_of: Mapping[str, int]) -> int:
    return made_of["files"] + made_of["overhead_files"]


def _of_others(made_of: Mapping[str, int], mode: str) -> int:
    """What programs hold that are neither sandboxes nor ours."""
    ours = made_of["private"] + made_of["shared_memory"]
    if mode not in _KERNEL_HELD:
        ours += made_of["pool"] + made_of["tables"]
    return made_of["programs"] - ours - made_of["overhead"] + made_of["overhead_files"]


def gaps_table(results: Iterable[tuple[str, Mapping[str, Any]]]) -> Table:
    """
    Both gains of every mode.

    Args:
        results: Fan-outs, each with its name.
    """
    rows = []
    for name, result in results:
        none = next(one for one in result["modes"] if one["mode"] == "none")
        for one in result["modes"]:
            if one["mode"] != "none" and (gap := gap_of(one, none)):
                percent = "-" if gap.percent is None else f"{gap.percent:+.1f} %"
                sizes = (gap.host, gap.pss, gap.bytes)
                rows.append(
                    (
                        f"{name}, {one['mode']}",
                        *(format_bytes(size) for size in sizes),
                        percent,
                        *(format_bytes(part) for part in gap.parts.values()),
                        gap.explanation or "-",
                    )
                )
    return Table(
        "What the host gained: by MemAvailable, and by PSS accounting",
        (
            *("run, mode", "host_gain", "pss_gain", "difference", "of pss_gain"),
            *("kernel", "files", "others", "rest", f"above {PERCENT_MAX:g} %: what it is"),
        ),
        tuple(rows),
        (
            "Means while turns were taken, against mode none of the same run.",
            "kernel: page tables, slabs, stacks and per-CPU areas, which no PSS has.",
            "files: pages of files, which PSS counts and MemAvailable does not.",
            "others: programs that are neither sandboxes nor AgentZip, the bench itself included.",
            "rest: what remains.",
        ),
        words=(9,),
    )

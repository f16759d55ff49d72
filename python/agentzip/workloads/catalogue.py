"""
The agents that take turns: what each runs, on whose data, how large it is, what it waits for.

A to D are what agents do; the other three are what somebody asks who does not believe in it: one
that waits for a person for minutes, one that is gone in the middle of a run, one that never rests.
"""

from dataclasses import dataclass

__all__ = ["WORKLOADS", "Workload"]

_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One agent that takes turns (turns.py)."""

    program: str
    """Its module in this package, or its script."""
    kind: str
    """Whose data it works on (material.py)."""
    packages: tuple[str, ...] = ()
    """What its Python must have installed; all of them are `agentzip[bench]`."""
    fixed_bytes: int
    each_bytes: int
    """RSS: what its programs take, and what comes with each 1.0 of data (measured)."""
    default_bytes: int
    """RSS if nobody says another."""
    waits_for: str = "model"
    """`model` or `user`, between two turns; empty for one that works all the time."""
    leaves: bool = False
    """It ends after half of the turns."""

    def data_size(self, rss_bytes: int) -> float:
        """The size of the data that leads to this RSS."""
        return (rss_bytes - self.fixed_bytes) / self.each_bytes


_DATA_PACKAGES = ("numpy", "pandas", "sklearn", "matplotlib")
_TOOL_PACKAGES = ("pydantic", "langchain_core", "httpx", "bs4", "lxml")


def _tool_user(waits_for: str, *, leaves: bool) -> Workload:
    return Workload(
        program="tool_user",
        kind="tools",
        packages=_TOOL_PACKAGES,
        fixed_bytes=141 * _MIB,
        each_bytes=60 * _MIB,
        default_bytes=200 * _MIB,
        waits_for=waits_for,
        leaves=leaves,
    )


WORKLOADS = {
    "A": Workload(
        program="analyst",
        kind="python",
        packages=_DATA_PACKAGES,
        fixed_bytes=280 * _MIB,
        each_bytes=33 * _MIB,
        default_bytes=320 * _MIB,
    ),
    "B": _tool_user("model", leaves=False),
    "C": Workload(
        program="surfer",
        kind="browser",
        fixed_bytes=870 * _MIB,
        each_bytes=680 * _MIB,
        default_bytes=1536 * _MIB,
    ),
    "D": Workload(
        program="node_batch.js",
        kind="node",
        fixed_bytes=62 * _MIB,
        each_bytes=100 * _MIB,
        default_bytes=200 * _MIB,
    ),
    "waiting": _tool_user("user", leaves=False),
    "finishing": _tool_user("model", leaves=True),
    "busy": Workload(
        program="counter",
        kind="json",
        packages=("pydantic",),
        fixed_bytes=88 * _MIB,
        each_bytes=62 * _MIB,
        default_bytes=150 * _MIB,
        waits_for="",
    ),
}
"""By name, in the order in which they are listed."""

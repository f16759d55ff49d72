"""
A sandbox as a row of a table: the same cells in `status`, `stats` and `top`.

Everything is said in words and figures, never by colour alone.
"""

from agentzip.sandboxes import SandboxStatus, ScopeStatus
from agentzip.totals import pages_ratio
from agentzip.units import format_bytes

__all__ = [
    "NUMBERS",
    "SANDBOX_COLUMNS",
    "SCOPE_COLUMNS",
    "age",
    "mark",
    "phases",
    "sandbox_row",
    "scope_row",
    "share",
    "times",
]

SANDBOX_COLUMNS = [
    *("SANDBOX", "PHASE", "RESIDENT", "OUT", "STORED", "RATIO", "FAULTS", "WAKES", "PREFETCH"),
    *("WAKE P99", "MARK"),
]

SCOPE_COLUMNS = ["SCOPE", "STATE", "SANDBOXES", "ISOLATION", "FROM"]

NUMBERS = {
    *("RESIDENT", "OUT", "STORED", "RATIO", "FAULTS", "WAKES", "PREFETCH", "WAKE P99"),
    "SANDBOXES",
}
"""Columns that hold numbers."""


def sandbox_row(sandbox: SandboxStatus) -> list[str]:
    """Cells for `SANDBOX_COLUMNS`."""
    wake = sandbox.wake_p99_ms
    return [
        sandbox.name,
        f"{sandbox.phase} {age(sandbox.phase_age_s)}",
        format_bytes(sandbox.rss_bytes),
        format_bytes(sandbox.bytes_logical),
        format_bytes(sandbox.bytes_pool),
        times(pages_ratio(sandbox)),
        str(sandbox.faults),
        str(sandbox.wakes),
        share(sandbox.prefetch_hit_rate),
        "-" if wake is None else f"{wake:.1f} ms",
        mark(sandbox),
    ]


def scope_row(scope: ScopeStatus) -> list[str]:
    """Cells for `SCOPE_COLUMNS`."""
    return [
        scope.pattern,
        "on" if scope.enabled else "off",
        str(scope.sandboxes),
        scope.isolation,
        scope.source,
    ]


def mark(sandbox: SandboxStatus) -> str:
    """Why nothing of a sandbox is paged out: somebody said so, or it does not pay."""
    if sandbox.pinned:
        return "pinned"
    return f"left alone: {sandbox.left_alone}" if sandbox.left_alone else ""


def phases(counts: dict[str, int]) -> str:
    """`3 running, 5 waiting_model`."""
    return ", ".join(f"{count} {phase}" for phase, count in counts.items())


def age(seconds: float) -> str:
    """A time that went by, in the largest unit that fits: `8s`, `5m`, `3h`, `2d`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"


def share(value: float | None) -> str:
    """`85%`, or a dash for what is not known."""
    return "-" if value is None else f"{value:.0%}"


def times(value: float | None) -> str:
    """`3.52x`, or a dash for what is not known."""
    return "-" if value is None else f"{value:.2f}x"

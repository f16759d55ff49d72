"""
How much the host suffers from want of memory: pressure stall information.

`/proc/pressure/memory` says for which share of the time some task waited for memory (kernel
documentation, accounting/psi).  A kernel built or started without it has no such file.
"""

from pathlib import Path

from agentzip.host.memory import ROOT

__all__ = ["memory_pressure"]


def memory_pressure(root: Path = ROOT) -> float | None:
    """Share of the last ten seconds, 0 to 1, in which a task waited; None without the file."""
    try:
        text = (root / "proc" / "pressure" / "memory").read_text()
    except OSError:
        # Also with `psi=0`: the file is there and reading it says EOPNOTSUPP.
        return None
    for line in text.splitlines():
        kind, *values = line.split()
        fields = dict(value.split("=", 1) for value in values if "=" in value)
        if kind == "some" and "avg10" in fields:
            return min(max(float(fields["avg10"]) / 100, 0.0), 1.0)
    return None

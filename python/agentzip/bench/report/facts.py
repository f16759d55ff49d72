"""
Where a figure was measured: the machine, its kernel, and the commit.
"""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from agentzip.host.memory import ROOT, memory_total

__all__ = ["commit", "machine"]


def machine(root: Path = ROOT) -> dict[str, str | int]:
    """What the host is; `memory_bytes` is all that it has."""
    lines = (root / "proc" / "cpuinfo").read_text(errors="replace").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": memory_total(root),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "agentzip": metadata.version("agentzip"),
    }


def commit(folder: Path = Path(__file__).parent) -> str:
    """The commit of the checkout that runs, and whether it was changed; empty for a package."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, check=False, text=True
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        found = git("rev-parse", "HEAD")
        # A package that was installed into a folder of some other checkout is not that checkout.
        if not found or not git("ls-files", str(folder / "facts.py")):
            return ""
        return (
            f"{found} with changes"
            if git("status", "--porcelain", "--untracked-files=no")
            else found
        )
    except FileNotFoundError:
        return ""

"""
Whether a process is part of a gVisor sandbox, whose memory cannot be paged from outside.

The memory of all programs in such a sandbox is one shared memfd that its kernel (the sentry) and
its stubs map; taking pages out of one of the mappings would free nothing.
"""

import os
from contextlib import suppress
from pathlib import Path

from agentzip.host.memory import ROOT
from agentzip.host.processes import ProcessInfo

__all__ = ["REASON", "holds_sandbox"]

REASON = (
    "gVisor: the memory of its programs is one shared memfd (runsc-memory), which leaves only "
    "with the help of its own kernel"
)
"""Why such a sandbox is left alone."""


def holds_sandbox(process: ProcessInfo, root: Path = ROOT) -> bool:
    """Whether a process is a sentry or a stub: a program called runsc that maps that memfd."""
    folder = root / "proc" / str(process.pid)
    with suppress(OSError):
        program = os.path.basename(os.readlink(folder / "exe"))
        # The program may have another name on disk; runsc calls itself so in its arguments.
        if program.startswith("runsc") or process.command.startswith("runsc-"):
            return b"/memfd:runsc-memory" in (folder / "maps").read_bytes()
    return False

"""
How an instance starts: this program sets what is inherited, then becomes the instance.

    ends with its parent   the kernel kills it when the bench dies, however it dies
    --mergeable            KSM may merge its pages when KSM runs (a process can only ask for itself)
    --lives-on             it is not ended: it has something to give back first
    --group FOLDER         it is in this control group before it does anything

All survive exec, so the instance needs no code for them, in whatever language it is.
"""

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_PR_SET_MEMORY_MERGE = 67


def main(arguments: list[str] | None = None) -> None:
    """Set what was asked for and exec the command behind `--`."""
    parser = argparse.ArgumentParser(prog="agentzip.workloads.launcher", description=__doc__)
    parser.add_argument("--mergeable", action="store_true")
    parser.add_argument("--lives-on", action="store_true")
    parser.add_argument("--group", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    libc = ctypes.CDLL(None)
    if not options.lives_on:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:
        sys.exit("whoever started this is gone already")
    if options.group is not None:
        (options.group / "cgroup.procs").write_text(str(os.getpid()))
    # A kernel without it: the bench says so when it comes to KSM.
    if options.mergeable:
        libc.prctl(_PR_SET_MEMORY_MERGE, 1, 0, 0, 0)
    os.execvp(options.command[0], options.command)  # noqa: S606


if __name__ == "__main__":
    main()

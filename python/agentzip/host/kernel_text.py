"""
Text files of the kernel, line by line as the kernel ends lines.

A process chooses its own name, and who makes a control group chooses that one's.  The kernel lets
nobody put a line feed into either, but all else that Python takes for the end of a line when it
reads text or splits it: a process could otherwise write lines of its own into its status.
"""

import os
from pathlib import Path

__all__ = ["lines_of"]


def lines_of(path: Path) -> list[str]:
    """
    The lines of a file, without their ends; bytes that are no text are kept as file names are.

    Raises:
        OSError: it cannot be read.
    """
    *lines, rest = os.fsdecode(path.read_bytes()).split("\n")
    return [*lines, rest] if rest else lines

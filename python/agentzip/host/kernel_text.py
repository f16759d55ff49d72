"""
Text files of the kernel, line by line as the kernel ends lines, and names that others chose.

A process chooses its own name and command line, and who makes a control group chooses that one's.
The kernel lets nobody put a line feed into a name, but all else that Python takes for the end of a
line when it reads text or splits it: a process could otherwise write lines of its own into its
status.  And what an operator reads, on a terminal or in a log, must not be able to move his cursor,
to hide or add a line, or to be no text at all.
"""

import os
from pathlib import Path

__all__ = ["lines_of", "printable"]


def lines_of(path: Path) -> list[str]:
    """
    The lines of a file, without their ends; bytes that are no text are kept as file names are.

    Raises:
        OSError: it cannot be read.
    """
    *lines, rest = os.fsdecode(path.read_bytes()).split("\n")
    return [*lines, rest] if rest else lines


def printable(text: str) -> str:
    r"""
    A text of anybody as it may be shown: every character that is not printed, escaped.

    Control characters, bytes that are no text and marks that turn the direction of writing become
    escapes like `\x1b`; what is printable already stays as it is, backslashes too, so that two
    texts can come out equal.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)

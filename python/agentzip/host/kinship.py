"""
Whom a process resembles: the image that it was made from.

Two sandboxes of one image run the same program from the same files, so their pages resemble each
other wherever the tasks differ.  The image only helps to find a peer and a dictionary; a wrong
guess costs density, nothing else.
"""

import contextlib
import os
import re

__all__ = ["NO_SCOPE", "image_of"]

NO_SCOPE = "default"
"""Trust domain of processes that were attached by hand: no sandbox is in it."""

_SCRIPT_SUFFIXES = (".py", ".js", ".mjs", ".cjs")


def image_of(pid: int) -> str:
    """
    A name that processes of one image have in common: the program, its version and its script.

    Empty if the process has gone.
    """
    with contextlib.suppress(OSError):
        exe = os.stat(f"/proc/{pid}/exe")
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        return f"{name}:{exe.st_size}:{int(exe.st_mtime)}:{_script(pid)}"
    return ""


def _script(pid: int) -> str:
    """The script among the arguments, or a Chromium process's kind; else empty."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        arguments = file.read().decode(errors="replace").split("\0")
    for argument in arguments[1:]:
        kind = re.fullmatch(r"--type=([a-z-]+)", argument)
        if kind is not None:
            return kind[1]
        if argument.endswith(_SCRIPT_SUFFIXES):
            return os.path.basename(argument)
        if argument == "-m":
            return " ".join(arguments[arguments.index(argument) : arguments.index(argument) + 2])
    return ""

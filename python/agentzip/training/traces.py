"""
What must not be in a dictionary that leaves the machine it was made on.

A dictionary holds pieces of the pages it was made from.  So the words that tell this machine and
its user apart from others are looked for in it, in the encodings in which programs keep texts.
This finds what it looks for and nothing else; that the data is generated is the recipe's duty.
"""

import os
import pwd
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["machine_words", "traces"]

_LENGTH_MIN = 5
"""Shorter words appear by chance in a quarter of a mebibyte (`/tmp` is one of them)."""

_GENERIC = {
    *("root", "admin", "daemon", "nobody", "localhost", "sandbox", "linux", "debian", "ubuntu"),
    *("/root", "/home", "/usr", "/usr/local", "/usr/bin", "/usr/lib", "C.UTF-8"),
    *("xterm", "xterm-256color", "/bin/bash", "/bin/sh", "/usr/bin/bash", "/nonexistent"),
}
"""Words that name every machine alike."""

_ENCODINGS = ("utf-8", "utf-16-le", "utf-32-le")
"""As C, V8 and Chromium, and Python keep them."""


def machine_words() -> set[str]:
    """Words that tell this machine and its user: names, folders, identifiers, environment."""
    words = {socket.gethostname(), os.uname().nodename, socket.gethostname().partition(".")[0]}
    user = _user()
    if user is not None:
        words |= {user.pw_name, user.pw_dir, user.pw_gecos.partition(",")[0]}
    words |= {os.getcwd(), sys.prefix, str(Path(__file__).resolve().parents[3])}
    for file in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        words.add(_text(file))
    # Whatever only this session's environment holds: keys and tokens, folders, addresses.
    for value in os.environ.values():
        words |= {value, *value.split(os.pathsep)}
    folders = {word for word in words if word.startswith("/")}
    # The home of root and of system users is everywhere the same; what lies below it is not.
    return {
        word
        for word in words
        if len(word) >= _LENGTH_MIN
        and word not in _GENERIC
        and not (word in folders and _is_system(word))
    }


def _user() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def _is_system(folder: str) -> bool:
    """Whether a folder is part of every installation."""
    systems = ("/usr", "/bin", "/sbin", "/lib", "/etc", "/proc", "/sys", "/dev")
    return any(folder == system or folder.startswith(f"{system}/") for system in systems)


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def traces(data: bytes, words: Iterable[str]) -> list[str]:
    """The words that stand in the data, in any of the encodings, sorted."""
    return sorted(
        {
            word
            for word in words
            for encoding in _ENCODINGS
            if word.encode(encoding, errors="surrogatepass") in data
        }
    )

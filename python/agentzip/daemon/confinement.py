"""
What the daemon gives up before it serves anybody: core dumps, and rights that it does not need.

It holds pages of every sandbox, so nothing may write its memory to a disk; and it reads what
sandboxes send, so whoever took it over should find little to go on with.  A service manager can
do the second from outside (`packaging/agentzip.service` names the same capabilities); this is for
a daemon that root starts by hand.

Capabilities belong to threads, and a new thread has those of the one that made it: they must be
dropped while there is only one.  That each of those that stay is needed, and that no other is, was
tried one by one; `docs/safety.md` says what fails without.
"""

import contextlib
import ctypes
import os

from agentzip.errors import InternalError

__all__ = ["CAPABILITIES", "confine", "keep_out_of_core_dumps"]

CAPABILITIES = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_IPC_LOCK": 14,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_NICE": 23,
}
"""What stays, with its number in linux/capability.h."""

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 4, 24
_VERSION_3 = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3: sets of 64 bits in two words each."""
_CAPABILITIES_MAX = 64
"""As many as such a set can name; the kernel refuses numbers that it does not know."""

_PRIVATE_UMASK = 0o077
"""Sockets that the engine makes (the keeper's) have no other protection than their mode."""

_Words = ctypes.c_uint32 * 6
"""Effective, permitted and inheritable of the numbers below 32, then of those from there on."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def keep_out_of_core_dumps() -> None:
    """No crash writes our memory out, and no process of our user reads it; the keeper inherits."""
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def confine() -> None:
    """
    Keep out of core dumps, make files for ourselves alone, keep no other right than `CAPABILITIES`.

    Raises:
        InternalError: there are other threads already, which would keep what they have.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise InternalError(f"only a process of one thread can drop rights; threads: {threads}")
    keep_out_of_core_dumps()
    os.umask(_PRIVATE_UMASK)
    header, words = _Header(_VERSION_3, 0), _Words()
    _call("capget", ctypes.byref(header), words)
    # What a program that root starts is given again.  Refused to who has no right to set bounds,
    # and at the end for numbers that this kernel does not have.
    with contextlib.suppress(OSError):
        for number in range(_CAPABILITIES_MAX):
            if number not in CAPABILITIES.values():
                _call("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0)
    kept = sum(1 << number for number in CAPABILITIES.values())
    for half in (0, 1):
        mask = kept >> 32 * half & 0xFFFFFFFF
        words[3 * half] &= mask
        words[3 * half + 1] &= mask
        words[3 * half + 2] = 0
    _call("capset", ctypes.byref(header), words)


def _call(name: str, *arguments: object) -> None:
    """
    A function of the C library.

    Raises:
        OSError: the kernel's answer.
    """
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")

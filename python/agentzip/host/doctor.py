"""
Can this host run the pager, and if not, what is the smallest change that helps?

Every check yields one finding: what was looked at, how it stands, the exact cause, the fix.
A fix never asks for privileged mode or for loosening a setting of the whole host: where only that
would help, the finding says that AgentZip cannot work here.
Only what stops the pager is a `fail`; what makes it slower, smaller or less certain is a `warn`;
what is good to know is a `note`.  What else deals with memory on the host is in surroundings.py.
"""

import os
import platform
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentzip.errors import AgentZipError
from agentzip.host.finding import Finding, read
from agentzip.host.groups import group_of
from agentzip.host.memory import ROOT
from agentzip.host.surroundings import look_around
from agentzip.units import format_bytes

__all__ = [
    "Finding",
    "Limits",
    "can_work",
    "current_limits",
    "examine",
    "examine_filter",
    "examine_keeper",
]

_REQUIRED_FEATURES = {
    "userfaultfd_device": ("6.1", "faults of the kernel itself must come to the daemon, too"),
    "uffd_move": ("6.8", "pages leave by it, whatever the program does with them meanwhile"),
    "uffd_wp_async": ("6.7", "it tells which pages were written since they came back"),
    "pagemap_scan": ("6.7", "it lists the pages that may leave"),
    "pidfd_thread": ("6.9", "a borrowed thread is known by it, even when its number is reused"),
    "pidfd_getfd": ("5.6", "the target's userfaultfd comes to the daemon by it"),
    "ptrace": ("3.4", "a thread of the target is borrowed by it"),
}
"""Feature -> first kernel version that has it, and what it is for; without one nothing works."""

_HELPFUL_FEATURES = {
    "uffd_poison": "without it a damaged page ends its target instead of one access",
    "suspend_seccomp": "without it targets confined by seccomp are refused",
}

_NEEDED_CAPABILITIES = {
    "CAP_SYS_PTRACE": (19, "without it no process of others can be borrowed"),
    "CAP_SYS_ADMIN": (21, "without it the pages of others can be neither listed nor moved"),
}

_HELPFUL_CAPABILITIES = {
    "CAP_SYS_NICE": (23, "fault threads get no raised priority: slower faults on a busy host"),
    "CAP_IPC_LOCK": (14, "the daemon's memory is locked only up to the memlock limit"),
}

_DEVICE_WHY = "every target's faults come to the daemon through it"

_MEMLOCK_BYTES_MIN = 64 * 2**20
"""Locked memory that keeps the fault path of the daemon resident."""

_NOFILE_MIN = 4096
"""Descriptors for some hundred targets; each takes a handful in daemon and keeper."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Soft resource limits of the process that would be the daemon; -1 is unlimited."""

    memlock_bytes: int
    nofile: int


def current_limits() -> Limits:
    """Limits of this process."""
    return Limits(
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def can_work(findings: list[Finding]) -> bool:
    """Whether nothing was found that stops the pager."""
    return all(finding.status != "fail" for finding in findings)


def examine(
    features: Callable[[], dict[str, str]],
    root: Path = ROOT,
    limits: Limits | None = None,
    machine: str | None = None,
) -> list[Finding]:
    """
    Look at everything.

    Args:
        features: The engine's probe (`agentzip.pager.features`).
        root: Where `/proc`, `/sys` and `/dev` are looked for.
        limits: Resource limits to judge; None means those of this process.
        machine: Name of the processor architecture; None means this machine's.
    """
    capabilities = _effective_capabilities(root)
    return [
        _architecture(machine or platform.machine()),
        *_capabilities(capabilities),
        _device(root),
        *_features(features),
        _yama(root),
        examine_filter("seccomp filter", "self", root),
        *_limits(limits or current_limits(), capabilities),
        *look_around(root),
    ]


def examine_keeper(daemon_pid: int, keeper_pid: int, root: Path = ROOT) -> Finding:
    """Whether the keeper of a running daemon outlives what ends the daemon's control group."""
    name, fix = "keeper's control group", "put KillMode=process into the unit of the daemon"
    daemon, keeper = group_of(daemon_pid, root), group_of(keeper_pid, root)
    if daemon is None or keeper is None:
        return Finding(name, "ok", "not known: no unified hierarchy, or one of the two has ended")
    why = f"whoever ends {daemon} ends the keeper too, and with it every page that is out"
    if daemon == "/":
        return Finding(name, "ok", "both are in the root group, which nobody can end")
    if daemon == keeper:
        fix = f"{fix}, with Delegate=yes"
        return Finding(name, "warn", f"{daemon} is shared with the daemon", fix, why)
    if keeper.startswith(f"{daemon}/") and ".service" in daemon:
        cause = f"below the daemon's, {keeper}, which is ended with it by default"
        return Finding(name, "warn", cause, fix, why)
    return Finding(name, "ok", keeper)


def examine_filter(name: str, pid: int | str, root: Path = ROOT) -> Finding:
    """Whether a process that is the daemon, or would be, is confined by seccomp."""
    for line in read(root, f"proc/{pid}/status").splitlines():
        if line.startswith("Seccomp:") and line.split()[1] != "0":
            return Finding(
                name,
                "warn",
                f"process {pid} is confined by seccomp",
                "start the daemon without a filter: as the unit in packaging/ does, or in a "
                "container with seccomp=unconfined for this one",
                "the kernel lets nobody who is confined suspend another's filter, so every sandbox "
                "that has one is refused",
            )
    return Finding(name, "ok", "none")


def _architecture(machine: str) -> Finding:
    if machine == "x86_64":
        return Finding("architecture", "ok", machine)
    return Finding(
        "architecture",
        "fail",
        f"{machine}: only x86_64 is supported",
        "use an x86-64 host",
        "what a borrowed thread is made to do is written in machine code",
    )


def _effective_capabilities(root: Path) -> int:
    for line in read(root, "proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _capabilities(effective: int) -> list[Finding]:
    findings = []
    for name, (bit, why) in _NEEDED_CAPABILITIES.items():
        if effective >> bit & 1:
            findings.append(Finding(name, "ok", "held"))
        else:
            findings.append(
                Finding(
                    name,
                    "fail",
                    "not in the effective set of this process",
                    f"run as root, or give the daemon this one capability: {name}",
                    why,
                )
            )
    for name, (bit, why) in _HELPFUL_CAPABILITIES.items():
        if effective >> bit & 1:
            findings.append(Finding(name, "ok", "held"))
        else:
            fix = f"give the daemon {name}, or accept this"
            findings.append(Finding(name, "warn", "not held", fix, why))
    return findings


def _device(root: Path) -> Finding:
    name, path = "/dev/userfaultfd", root / "dev" / "userfaultfd"
    if not path.exists():
        return Finding(
            name,
            "fail",
            "there is no such device",
            "outside a container: use a kernel with CONFIG_USERFAULTFD, 6.1 or newer; "
            "inside one: hand in this one device",
            _DEVICE_WHY,
        )
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(
            name,
            "fail",
            "this user may not open it for reading and writing",
            "run as root, or give the daemon's user read and write access to this one device",
            _DEVICE_WHY,
        )
    return Finding(name, "ok", "present and accessible")


def _features(probe: Callable[[], dict[str, str]]) -> list[Finding]:
    try:
        causes = probe()
    except AgentZipError as error:
        why = "it is what moves pages; nothing works without it"
        return [Finding("engine", "fail", str(error), error.hint, why)]
    findings = []
    for name, cause in causes.items():
        if not cause:
            findings.append(Finding(name, "ok", "works"))
        elif name in _REQUIRED_FEATURES:
            version, why = _REQUIRED_FEATURES[name]
            fix = f"the kernel has it since Linux {version}: upgrade if it is older, else see cause"
            findings.append(Finding(name, "fail", cause, fix, why))
        else:
            why = _HELPFUL_FEATURES.get(name, "some functions are missing without it")
            findings.append(Finding(name, "warn", cause, "use a newer kernel", why))
    findings += [
        Finding(name, "fail", "the engine did not probe it", "reinstall agentzip", why)
        for name, (_, why) in sorted(_REQUIRED_FEATURES.items())
        if name not in causes
    ]
    return findings


def _yama(root: Path) -> Finding:
    scope = read(root, "proc/sys/kernel/yama/ptrace_scope")
    if scope == "3":
        return Finding(
            "yama ptrace_scope",
            "fail",
            "3: this host forbids all tracing until it is restarted",
            "none: AgentZip cannot work where the administrator has ruled out tracing",
            "a thread of each target is borrowed once, as a debugger does it",
        )
    if scope in {"1", "2"}:
        return Finding("yama ptrace_scope", "ok", f"{scope}: enough with CAP_SYS_PTRACE")
    return Finding("yama ptrace_scope", "ok", scope or "not part of this kernel")


def _limits(limits: Limits, capabilities: int) -> list[Finding]:
    unlimited_lock = limits.memlock_bytes < 0 or capabilities >> 14 & 1
    if unlimited_lock or limits.memlock_bytes >= _MEMLOCK_BYTES_MIN:
        memlock = Finding("memlock limit", "ok", "enough, or waived by CAP_IPC_LOCK")
    else:
        memlock = Finding(
            "memlock limit",
            "warn",
            f"{format_bytes(limits.memlock_bytes)}: parts of the daemon may be swapped out",
            f"raise it for the daemon to {format_bytes(_MEMLOCK_BYTES_MIN)} (LimitMEMLOCK=)",
            "faults then wait for the host's swap: slower, never wrong",
        )
    if limits.nofile < 0 or limits.nofile >= _NOFILE_MIN:
        nofile = Finding("descriptor limit", "ok", str(limits.nofile))
    else:
        nofile = Finding(
            "descriptor limit",
            "warn",
            f"{limits.nofile}: too few for some hundred targets",
            f"raise it for the daemon to {_NOFILE_MIN} (LimitNOFILE=)",
            "a target takes a handful of descriptors, and further ones are refused without them",
        )
    return [memlock, nofile]

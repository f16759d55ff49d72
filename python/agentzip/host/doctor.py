"""
Can this host run the pager, and if not, what is the smallest change that helps?

Every check yields one finding: what was looked at, how it stands, the exact cause, the fix.
A fix never asks for privileged mode or for loosening a setting of the whole host: where only that
would help, the finding says that AgentZip cannot work here.
Only what stops the pager is a `fail`; what makes it slower, smaller or less certain is a `warn`.
"""

import os
import platform
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentzip.errors import AgentZipError
from agentzip.host.groups import group_of
from agentzip.host.memory import ROOT
from agentzip.units import format_bytes

__all__ = ["Finding", "Limits", "can_work", "current_limits", "examine", "examine_keeper"]

_REQUIRED_FEATURES = {
    "userfaultfd_device": "6.1",
    "uffd_move": "6.8",
    "uffd_wp_async": "6.7",
    "pagemap_scan": "6.7",
    "pidfd_thread": "6.9",
    "pidfd_getfd": "5.6",
    "ptrace": "3.4",
}
"""Feature -> first kernel version that has it; without one of these nothing works."""

_HELPFUL_FEATURES = {
    "uffd_poison": "without it a damaged page ends its target instead of one access (Linux 6.6)",
    "suspend_seccomp": "without it targets confined by seccomp are refused (Linux 4.3)",
}

_NEEDED_CAPABILITIES = {"CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21}

_HELPFUL_CAPABILITIES = {
    "CAP_SYS_NICE": (23, "fault threads get no raised priority: slower faults on a busy host"),
    "CAP_IPC_LOCK": (14, "the daemon's memory is locked only up to the memlock limit"),
}

_MEMLOCK_BYTES_MIN = 64 * 2**20
"""Locked memory that keeps the fault path of the daemon resident."""

_NOFILE_MIN = 4096
"""Descriptors for some hundred targets; each takes a handful in daemon and keeper."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    name: str
    status: str
    """`ok`, `warn` or `fail`."""
    cause: str
    """What was found, exactly."""
    fix: str = ""
    """The smallest change that helps; empty if none is needed."""


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
        *_limits(limits or current_limits(), capabilities),
        _swap(root),
        _huge_pages(root),
    ]


def examine_keeper(daemon_pid: int, keeper_pid: int, root: Path = ROOT) -> Finding:
    """Whether the keeper of a running daemon outlives what ends the daemon's control group."""
    name, fix = "keeper's control group", "put KillMode=process into the unit of the daemon"
    daemon, keeper = group_of(daemon_pid, root), group_of(keeper_pid, root)
    if daemon is None or keeper is None:
        return Finding(name, "ok", "not known: no unified hierarchy, or one of the two has ended")
    ends_both = f"whoever ends {daemon} ends the keeper too, and with it every page that is out"
    if daemon == "/":
        return Finding(name, "ok", "both are in the root group, which nobody can end")
    if daemon == keeper:
        return Finding(
            name, "warn", f"shared with the daemon: {ends_both}", f"{fix}, with Delegate=yes"
        )
    if keeper.startswith(f"{daemon}/") and ".service" in daemon:
        return Finding(name, "warn", f"below the daemon's, {keeper}: {ends_both}, by default", fix)
    return Finding(name, "ok", keeper)


def _architecture(machine: str) -> Finding:
    if machine == "x86_64":
        return Finding("architecture", "ok", machine)
    return Finding(
        "architecture", "fail", f"{machine}: only x86_64 is supported", "use an x86-64 host"
    )


def _effective_capabilities(root: Path) -> int:
    for line in _read(root, "proc/self/status").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _capabilities(effective: int) -> list[Finding]:
    findings = []
    for name, bit in _NEEDED_CAPABILITIES.items():
        if effective >> bit & 1:
            findings.append(Finding(name, "ok", "held"))
        else:
            findings.append(
                Finding(
                    name,
                    "fail",
                    "not in the effective set of this process",
                    f"run as root, or give the daemon this one capability: {name}",
                )
            )
    for name, (bit, consequence) in _HELPFUL_CAPABILITIES.items():
        if effective >> bit & 1:
            findings.append(Finding(name, "ok", "held"))
        else:
            fix = f"give the daemon {name}, or accept this"
            findings.append(Finding(name, "warn", f"not held: {consequence}", fix))
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
        )
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(
            name,
            "fail",
            "this user may not open it for reading and writing",
            "run as root, or give the daemon's user read and write access to this one device",
        )
    return Finding(name, "ok", "present and accessible")


def _features(probe: Callable[[], dict[str, str]]) -> list[Finding]:
    try:
        causes = probe()
    except AgentZipError as error:
        return [Finding("engine", "fail", str(error), error.hint)]
    findings = []
    for name, cause in causes.items():
        if not cause:
            findings.append(Finding(name, "ok", "works"))
        elif name in _REQUIRED_FEATURES:
            version = _REQUIRED_FEATURES[name]
            fix = f"the kernel has it since Linux {version}: upgrade if it is older, else see cause"
            findings.append(Finding(name, "fail", cause, fix))
        else:
            consequence = _HELPFUL_FEATURES.get(name, "some functions are missing without it")
            findings.append(Finding(name, "warn", f"{cause}: {consequence}", "use a newer kernel"))
    findings += [
        Finding(name, "fail", "the engine did not probe it", "reinstall agentzip")
        for name in sorted(_REQUIRED_FEATURES.keys() - causes.keys())
    ]
    return findings


def _yama(root: Path) -> Finding:
    scope = _read(root, "proc/sys/kernel/yama/ptrace_scope").strip()
    if scope == "3":
        return Finding(
            "yama ptrace_scope",
            "fail",
            "3: this host forbids all tracing until it is restarted",
            "none: AgentZip cannot work where the administrator has ruled out tracing",
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
            f"{format_bytes(limits.memlock_bytes)}: parts of the daemon may be swapped out, "
            "which makes faults slower but never wrong",
            f"raise it for the daemon to {format_bytes(_MEMLOCK_BYTES_MIN)} (LimitMEMLOCK=)",
        )
    if limits.nofile < 0 or limits.nofile >= _NOFILE_MIN:
        nofile = Finding("descriptor limit", "ok", str(limits.nofile))
    else:
        nofile = Finding(
            "descriptor limit",
            "warn",
            f"{limits.nofile}: further targets are refused once it is reached",
            f"raise it for the daemon to {_NOFILE_MIN} (LimitNOFILE=)",
        )
    return [memlock, nofile]


def _swap(root: Path) -> Finding:
    areas = [line.split()[0] for line in _read(root, "proc/swaps").splitlines()[1:] if line]
    zswap = _read(root, "sys/module/zswap/parameters/enabled").strip() in {"Y", "1"}
    if not areas:
        state = "no swap is active" + (" (zswap is on, without effect)" if zswap else "")
        return Finding("swap below the pool", "ok", state)
    compressed = zswap or any("zram" in area for area in areas)
    how = "compressed a second time" if compressed else "written to disk in clear"
    return Finding(
        "swap below the pool",
        "warn",
        f"active: {', '.join(areas)}{' with zswap' if zswap else ''}; "
        f"pages of the pool may be {how}",
        "put the daemon in a control group with memory.swap.max=0; leave the host's swap as it is",
    )


def _huge_pages(root: Path) -> Finding:
    text = _read(root, "sys/kernel/mm/transparent_hugepage/enabled")
    mode = text[text.find("[") + 1 : text.find("]")] if "[" in text else "not part of this kernel"
    if mode == "always":
        return Finding(
            "transparent huge pages",
            "warn",
            "always: huge pages are split when they leave and do not come back as huge pages",
            "none needed; programs that must keep theirs can be kept from being attached",
        )
    return Finding("transparent huge pages", "ok", mode)


def _read(root: Path, name: str) -> str:
    """Content of a file of the kernel; empty if this kernel does not have it."""
    try:
        return (root / name).read_text()
    except OSError:
        return ""

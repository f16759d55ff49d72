"""What the doctor says of hosts laid out in a temporary directory."""

from pathlib import Path

import pytest

from agentzip.errors import InternalError
from agentzip.host.doctor import (
    Finding,
    Limits,
    can_work,
    current_limits,
    examine,
    examine_keeper,
)
from quiet_host import QUIET, lay_out

FEATURES = dict.fromkeys(
    [
        *("userfaultfd_device", "uffd_move", "uffd_poison", "uffd_wp_async", "pagemap_scan"),
        *("pidfd_thread", "pidfd_getfd", "ptrace", "suspend_seccomp"),
    ],
    "",
)

ENOUGH = Limits(memlock_bytes=-1, nofile=20000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host on which everything works."""
    files = {
        "proc/self/status": "Name: x\nCapEff:\t000001ffffffffff\n",
        "proc/sys/kernel/yama/ptrace_scope": "1\n",
        "dev/userfaultfd": "",
    }
    return lay_out(tmp_path, {**QUIET, **files})


def look(
    root: Path,
    features: dict[str, str] | None = None,
    limits: Limits = ENOUGH,
    machine: str = "x86_64",
) -> dict[str, Finding]:
    """Findings by name."""
    found = examine(lambda: {**FEATURES, **(features or {})}, root, limits, machine)
    return {finding.name: finding for finding in found}


def test_a_filter_of_our_own_is_warned_of(root: Path) -> None:
    """Sandboxes with a filter would all be refused, and nobody would see why."""
    status = root / "proc" / "self" / "status"
    status.write_text(f"{status.read_text()}Seccomp:\t2\nSeccomp_filters:\t1\n")
    finding = look(root)["seccomp filter"]

    assert "warn" == finding.status
    assert "container" in finding.fix
    status.write_text("CapEff:\t000001ffffffffff\nSeccomp:\t0\n")
    assert "ok" == look(root)["seccomp filter"].status


def test_a_good_host_has_nothing_but_ok(root: Path) -> None:
    """Where everything works nothing needs a fix."""
    findings = look(root)

    assert {"ok"} == {finding.status for finding in findings.values()}
    assert can_work(list(findings.values()))


@pytest.mark.parametrize("name", ["uffd_move", "pagemap_scan", "ptrace", "pidfd_getfd"])
def test_a_missing_needed_feature_fails_with_its_cause(root: Path, name: str) -> None:
    """The exact cause of the probe is passed on, with the kernel version that has the feature."""
    findings = look(root, {name: "EINVAL from the probe"})

    assert "fail" == findings[name].status
    assert "EINVAL from the probe" == findings[name].cause
    assert "Linux" in findings[name].fix
    assert not can_work(list(findings.values()))


def test_a_missing_helpful_feature_warns(root: Path) -> None:
    """The pager works without poison, and the finding says what is lost."""
    finding = look(root, {"uffd_poison": "not known to this kernel"})["uffd_poison"]

    assert "warn" == finding.status
    assert "damaged page" in finding.why


def test_a_feature_that_was_not_probed_fails(root: Path) -> None:
    """Silence of the engine is not consent."""
    found = examine(dict, root, ENOUGH, "x86_64")

    assert "fail" == {finding.name: finding for finding in found}["uffd_move"].status


def test_an_engine_that_does_not_load_is_a_finding(root: Path) -> None:
    """Without the native module the doctor still says all the rest."""

    def broken() -> dict[str, str]:
        raise InternalError("the native module does not load", "build it")

    found = {finding.name: finding for finding in examine(broken, root, ENOUGH, "x86_64")}

    assert ("fail", "build it") == (found["engine"].status, found["engine"].fix)
    assert "ok" == found["CAP_SYS_PTRACE"].status


def test_missing_capabilities_are_named(root: Path) -> None:
    """Needed ones fail, helpful ones warn; the fix names the one capability."""
    (root / "proc/self/status").write_text("CapEff:\t0000000000000000\n")
    findings = look(root)

    assert "fail" == findings["CAP_SYS_PTRACE"].status
    assert "CAP_SYS_ADMIN" in findings["CAP_SYS_ADMIN"].fix
    assert "warn" == findings["CAP_SYS_NICE"].status


def test_a_missing_device_fails(root: Path) -> None:
    """Without the device no target can be attached."""
    (root / "dev/userfaultfd").unlink()

    assert "fail" == look(root)["/dev/userfaultfd"].status


def test_low_limits_warn_and_do_not_stop(root: Path) -> None:
    """Low memlock and descriptor limits are safe to continue with."""
    (root / "proc/self/status").write_text("CapEff:\t0000000000a80000\n")
    findings = look(root, limits=Limits(memlock_bytes=8 * 2**20, nofile=256))

    assert "warn" == findings["memlock limit"].status
    assert "8.0 MiB" in findings["memlock limit"].cause
    assert "warn" == findings["descriptor limit"].status
    assert can_work([findings["memlock limit"], findings["descriptor limit"]])


def test_a_host_that_forbids_tracing_is_not_argued_with(root: Path) -> None:
    """Scope 3 fails, and no advice to loosen it is given."""
    (root / "proc/sys/kernel/yama/ptrace_scope").write_text("3\n")
    finding = look(root)["yama ptrace_scope"]

    assert "fail" == finding.status
    assert finding.fix.startswith("none")


def test_another_architecture_fails(root: Path) -> None:
    """Only x86-64 is supported yet."""
    assert "fail" == look(root, machine="aarch64")["architecture"].status


def test_no_fix_weakens_the_host(root: Path) -> None:
    """No privileged mode, nothing that loosens the host; each says why and what to do."""
    (root / "proc/self/status").write_text("CapEff:\t0\n")
    (root / "proc/sys/kernel/yama/ptrace_scope").write_text("3\n")
    (root / "dev/userfaultfd").unlink()
    broken = dict.fromkeys(FEATURES, "missing")
    findings = look(root, broken, Limits(1, 1), "riscv64")
    advice = " ".join(finding.fix for finding in findings.values()).lower()

    assert not [word for word in ("privileged", "sysctl", "unprivileged_user") if word in advice]
    assert [] == [
        name
        for name, finding in findings.items()
        if finding.status != "ok" and not (finding.why and finding.fix)
    ]


def test_our_own_limits_can_be_read() -> None:
    """The limits of this process are what is judged by default."""
    assert current_limits().nofile != 0


@pytest.mark.parametrize(
    ("daemon", "keeper", "status"),
    [
        ("0::/x.service\n", "0::/x.service\n", "warn"),
        ("0::/x.service\n", "0::/x.service/agentzip-keeper-1\n", "warn"),
        ("0::/x\n", "0::/x\n", "warn"),
        ("0::/x\n", "0::/x/agentzip-keeper-1\n", "ok"),
        ("0::/x.service\n", "0::/y.scope\n", "ok"),
        ("0::/\n", "0::/\n", "ok"),
        ("4:memory:/x\n", "4:memory:/x\n", "ok"),
    ],
)
def test_a_keeper_that_would_be_ended_with_the_daemon_is_a_warning(
    tmp_path: Path, daemon: str, keeper: str, status: str
) -> None:
    """Sharing a group is, and so is lying below a unit that is ended with all below it."""
    for pid, text in ((10, daemon), (11, keeper)):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "cgroup").write_text(text)
    finding = examine_keeper(10, 11, tmp_path)

    assert status == finding.status
    assert ("KillMode=process" in finding.fix) == (status == "warn")

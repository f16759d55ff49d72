"""The systemd unit: what keeps memory from being lost, and what would make the daemon useless."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agentzip.daemon import serving
from agentzip.daemon.confinement import CAPABILITIES
from source_tree import ROOT

UNIT = ROOT / "packaging" / "agentzip.service"

BY_SECCOMP = (
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "SystemCallArchitectures",
    "SystemCallFilter",
    "SystemCallLog",
)
"""Settings for which systemd installs a seccomp filter (systemd.exec(5))."""

EXPOSURE_MAX = 69
"""
Tenths of systemd's points, of which 100 is no protection at all: what systemd 252 counts.  Each
protection that is taken out of the unit makes it more.

Two thirds of them are for settings that work by seccomp (`BY_SECCOMP`); the rest is what the daemon
is for: other users' processes and control groups, and root's files.
"""


def _settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        match = re.fullmatch(r"(\w+)=(.*)", line)
        if match is not None:
            found.setdefault(match[1], []).append(match[2])
        else:
            assert not line or line.startswith(("#", "[")), line
    return found


def test_the_keeper_and_the_way_to_it_outlive_the_daemon() -> None:
    """Only the daemon's own process is ended, and its run directory stays."""
    settings = _settings()

    assert ["process"] == settings["KillMode"]
    assert ["yes"] == settings["Delegate"]
    assert ["yes"] == settings["RuntimeDirectoryPreserve"]
    assert f"/run/{settings['RuntimeDirectory'][0]}" == str(serving.default_run_dir())


def test_nothing_is_set_that_the_daemon_does_not_do() -> None:
    """It says when it serves; it stores no descriptors and answers no watchdog."""
    settings = _settings()

    assert ["notify"] == settings["Type"]
    assert ["main"] == settings["NotifyAccess"]
    assert set() == set(settings) & {"FileDescriptorStoreMax", "WatchdogSec"}


def test_a_stop_may_take_as_long_as_the_daemon_takes() -> None:
    """Else systemd would kill it while pages come home."""
    assert serving._STOP_SECONDS_MAX < int(_settings()["TimeoutStopSec"][0])


def test_a_reload_is_a_hangup() -> None:
    """To the daemon alone."""
    assert ["/bin/kill -HUP $MAINPID"] == _settings()["ExecReload"]


def test_nothing_confines_the_daemon_by_seccomp() -> None:
    """The kernel would not let it suspend the filter of a sandbox then."""
    assert set() == set(_settings()) & set(BY_SECCOMP)


def test_what_the_daemon_needs_is_there() -> None:
    """The capabilities that the daemon keeps, the device, and groups that can be written."""
    settings = _settings()
    capabilities = [name for line in settings["CapabilityBoundingSet"] for name in line.split()]

    assert sorted(CAPABILITIES) == sorted(capabilities)
    assert ["/dev/userfaultfd rw"] == settings["DeviceAllow"]
    assert "ProtectControlGroups" not in settings


def test_systemd_understands_every_setting(tmp_path: Path) -> None:
    """Checked by systemd itself where it is installed."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze on this host")
    copy = tmp_path / UNIT.name
    # The check wants the program to be there.
    copy.write_text(UNIT.read_text().replace("/usr/bin/agentzip daemon", "/bin/true daemon"))
    result = subprocess.run(
        [program, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    # Units of the host itself may be told of as well.
    told = [line for line in result.stderr.splitlines() if UNIT.name in line]

    assert [] == told
    if UNIT.name not in result.stderr and result.returncode:
        pytest.skip(f"systemd-analyze does not work here: {result.stderr.strip()[:200]}")


def test_systemd_finds_the_service_no_more_exposed_than_it_has_to_be() -> None:
    """Scored by systemd itself where it is installed."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze on this host")
    words = [program, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(UNIT)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if "Overall exposure level" not in result.stdout:
        pytest.skip(f"systemd-analyze cannot score a unit file here: {result.stderr.strip()[:200]}")

    assert 0 == result.returncode, result.stdout

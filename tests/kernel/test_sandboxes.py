"""
Targets inside the sandboxes that agents really run in: namespaces, bubblewrap, a runc container.

The checks run through the self-test's runner, each in a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentzip.host import processes
from agentzip.selftest.build import SOURCES
from agentzip.selftest.registry import Check, CheckFailed, CheckSkipped, check, find
from agentzip.selftest.runner import run_one
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

_ROUNDS = 3
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP = "agentzip-test"


def _need(program: str) -> str:
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise CheckSkipped(f"no {program} on this host")
    return path


def _look_inside(target: Target, word: str) -> None:
    """Let the target's pid be that of the process inside, not that of the program around it."""
    for found in processes.descendants(target.pid):
        if found.command.startswith(word):
            target.pid = found.pid
            return
    raise CheckFailed(f"no {word} below {target.pid}")


def _three_rounds(stage: Stage, target: Target, pages: int) -> None:
    before = target.verify()
    for _ in range(_ROUNDS):
        report = stage.page_out(target)
        if report.pages_stored < pages:
            raise CheckFailed(f"too little left: {report}")
        if target.verify() != before:
            raise CheckFailed("the content differs")


@check("sandboxes/namespaces")
def namespaces(stage: Stage) -> None:
    """A process in user, pid, mount and network namespaces of its own."""
    memory = stage.program("memory")
    target = stage.start(_need("unshare"), "-Urpmnf", "--mount-proc", memory, "16", "3")
    _look_inside(target, memory)
    stage.attach(target)
    _three_rounds(stage, target, 3500)
    target.ok("fork-verify")


@check("sandboxes/bubblewrap")
def bubblewrap(stage: Stage) -> None:
    """A process in a bubblewrap sandbox that shares nothing."""
    memory = stage.program("memory")
    arguments = ("--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev")
    target = stage.start(
        *(_need("bwrap"), *arguments, "--ro-bind", memory, "/memory", "/memory", "16", "3"),
    )
    _look_inside(target, "/memory")
    stage.attach(target)
    _three_rounds(stage, target, 3500)
    target.ok("fork-verify")


@check("sandboxes/bubblewrap-python")
def bubblewrap_python(stage: Stage) -> None:
    """A Python program in a bubblewrap sandbox, with forked workers."""
    arguments = ("--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc")
    heap = (sys.executable, str(SOURCES / "heap.py"), "5")
    target = stage.start(_need("bwrap"), *arguments, "--dev", "/dev", *heap)
    _look_inside(target, sys.executable)
    stage.attach(target, "when asked")
    _three_rounds(stage, target, 1000)
    digest = target.verify()
    stage.page_out(target)
    if target.ok("pool", 40) != digest:
        raise CheckFailed("the workers see other data")


def _bundle(stage: Stage, name: str) -> Path:
    """A runc bundle: an unprivileged user, a filter, and the target as its only file."""
    bundle = stage.folder / "bundle"
    (bundle / "rootfs").mkdir(parents=True)
    shutil.copy2(stage.program("memory"), bundle / "rootfs" / "memory")
    refused = ["userfaultfd", "process_madvise", "madvise", "ptrace", "pidfd_getfd", "mremap"]
    configuration: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 1000, "gid": 1000},
            "args": ["/memory", "16", "3"],
            "env": ["PATH=/"],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": name,
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {
            # Absolute: a relative path would nest in the cgroups of whoever runs the tests.
            "cgroupsPath": f"/{_CGROUP}/{name}",
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "seccomp": {
                "defaultAction": "SCMP_ACT_ALLOW",
                "syscalls": [{"names": refused, "action": "SCMP_ACT_ERRNO"}],
            },
        },
    }
    (bundle / "config.json").write_text(json.dumps(configuration))
    return bundle


@check("sandboxes/runc")
def runc(stage: Stage) -> None:
    """An unprivileged process in a runc container with a seccomp filter."""
    program = _need("runc")
    name = f"agentzip-{os.getpid()}"
    state = ("--root", str(stage.folder / "runc"))
    bundle = _bundle(stage, name)
    target = stage.start(program, *state, "run", "--bundle", str(bundle), name)
    try:
        _look_inside(target, "/memory")
        stage.attach(target)
        _three_rounds(stage, target, 3500)
        target.ok("fork-verify")
        stage.settle()
    finally:
        subprocess.run([program, *state, "delete", "--force", name], check=False, timeout=20)
        _remove_cgroups(name)


def _remove_cgroups(name: str) -> None:
    for hierarchy in (_CGROUPS, *_CGROUPS.iterdir()):
        for folder in (hierarchy / _CGROUP / name, hierarchy / _CGROUP):
            # The parent stays while another run has a container in it.
            with suppress(OSError):
                folder.rmdir()


_CHECKS: list[Callable[[Stage], None]] = [namespaces, bubblewrap, bubblewrap_python, runc]
_NAMES = [f"sandboxes/{made.__name__.replace('_', '-')}" for made in _CHECKS]


@pytest.mark.parametrize("found", [pytest.param(find(name), id=name) for name in _NAMES])
def test_sandbox(found: Check) -> None:
    """A confined target is served like any other, and the sandbox is gone afterwards."""
    result = run_one(found)

    if result.skipped_reason:
        pytest.skip(result.skipped_reason)
    assert result.passed, result.detail

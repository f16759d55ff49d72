"""
Real containers found by a pattern: started, paused, restarted, killed; a gVisor one refused.

Nothing is attached here: these are the groups and processes that runtimes really make, in whatever
layout this host has.
"""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip.config import Scope
from agentzip.fleet.registry import Changes, Registry, Sandbox
from agentzip.fleet.scopes import Scopes
from agentzip.host import gvisor
from agentzip.host.cgroups import Cgroups, hierarchies
from agentzip.selftest.build import ensure_built
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.registry import CheckSkipped
from podman_host import CALL_SECONDS, Podman, call, needed_program, short_folder

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_GVISOR = "no runsc on this host: it is in Debian's package runsc"


@pytest.fixture
def group() -> Iterator[str]:
    """Name of a control group that nobody has, removed with all below it at the end."""
    name = f"agent-sandbox-{os.getpid()}"
    yield name
    tops = [f"{hierarchy.mount}/{name}" for hierarchy in hierarchies()]
    assert wait_until(lambda: all(_removed(top) for top in tops), 10), "control groups stay"


def _removed(top: str) -> bool:
    """Whether a group with all below it is gone; one still counts who has just ended."""
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)
    return not os.path.exists(top)


@pytest.fixture
def registry(group: str) -> Iterator[Registry]:
    """A registry with a pattern for that group and those that are called like it."""
    cgroups = Cgroups()
    if cgroups.mode == "none":
        pytest.skip("no control groups on this host")
    yield Registry(Scopes([Scope(cgroup=f"{group}*")]), cgroups, lambda: [os.getpid()])
    cgroups.close()


@pytest.fixture
def program() -> Path:
    """A static program that waits for words on its standard input."""
    try:
        return ensure_built() / "memory"
    except CheckSkipped as missing:
        pytest.skip(str(missing))


def _until(registry: Registry, what: str, holds: Callable[[Sandbox | None], bool]) -> Changes:
    """Look until the one sandbox is as told, or not there; returns the last look's changes."""
    last = [Changes()]

    def look() -> bool:
        last[0] = registry.refresh()
        found = registry.sandboxes()
        assert len(found) <= 1, found
        return holds(found[0] if found else None)

    assert wait_until(look, 20), f"never: {what}: {registry.sandboxes()}"
    return last[0]


def _runs(name: str) -> Callable[[Sandbox | None], bool]:
    """Whether the program runs in the sandbox, and nothing of the runtime does."""
    return lambda sandbox: (
        sandbox is not None and all(name in member.command for member in sandbox.members)
    )


def _bundle(folder: Path, program: Path, cgroup: str) -> Path:
    rootfs = folder / "rootfs"
    rootfs.mkdir(parents=True)
    shutil.copy2(program, rootfs / "memory")
    namespaces = [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]
    configuration = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 1000, "gid": 1000},
            "args": ["/memory", "4", "3"],
            "env": ["PATH=/"],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": "test",
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {"cgroupsPath": cgroup, "namespaces": namespaces},
    }
    (folder / "config.json").write_text(json.dumps(configuration))
    return folder


def _ended(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def test_a_runc_container_is_a_sandbox(
    group: str, registry: Registry, program: Path, tmp_path: Path
) -> None:
    """As systemd would nest it; frozen while paused, gone when killed, seen by host pids."""
    runc = [needed_program("runc"), "--root", str(tmp_path / "state")]
    bundle = _bundle(tmp_path / "bundle", program, f"/{group}/{group}-1.slice/box")
    container = subprocess.Popen(
        [*runc, "run", "--bundle", str(bundle), group],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        _until(registry, "container found", _runs("/memory"))
        (sandbox,) = registry.sandboxes()
        # The topmost group that matches, with everything below it.
        assert (group, group) == (sandbox.name, sandbox.cgroup)
        (member,) = sandbox.members
        host_pid = json.loads(call(*runc, "state", group))["pid"]
        assert host_pid == member.pid
        assert group == registry.sandbox_of(host_pid)
        assert not sandbox.frozen
        assert "" == sandbox.refused
        call(*runc, "pause", group)
        _until(registry, "container frozen", lambda found: found is not None and found.frozen)
        call(*runc, "resume", group)
        _until(registry, "container thawed", lambda found: found is not None and not found.frozen)
        call(*runc, "kill", group, "KILL")
        changes = _until(registry, "container gone", lambda found: found is None)
        assert [group] == [vanished.name for vanished in changes.vanished]
        assert [member] == changes.left
    finally:
        subprocess.run([*runc, "delete", "--force", group], check=False, timeout=CALL_SECONDS)
        _ended(container)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path podman does not find too long for its sockets."""
    with short_folder() as folder:
        yield folder


def test_a_podman_container_is_a_sandbox(
    group: str, registry: Registry, program: Path, short_path: Path
) -> None:
    """Paused, unpaused, restarted, killed; the monitor beside it is no part of it."""
    podman = Podman(short_path)
    with tarfile.open(short_path / "image.tar", "w") as image:
        image.add(program, "memory")
    podman("import", str(short_path / "image.tar"), "agentzip-test")
    podman(
        *("run", "--detach", "--interactive", "--name", group, "--network", "none"),
        *("--cgroup-parent", f"/{group}", "agentzip-test", "/memory", "4", "3"),
    )
    try:
        _until(registry, "container found", _runs("/memory"))
        (member,) = registry.sandboxes()[0].members
        assert str(member.pid) == podman("inspect", "--format", "{{.State.Pid}}", group)
        podman("pause", group)
        _until(registry, "container frozen", lambda found: found is not None and found.frozen)
        podman("unpause", group)
        _until(registry, "container thawed", lambda found: found is not None and not found.frozen)
        podman("restart", "--time", "0", group)
        _until(registry, "container restarted", _runs("/memory"))
        (again,) = registry.sandboxes()[0].members
        assert (member.pid, member.start_time) != (again.pid, again.start_time)
        assert member.pid not in {other.pid for other in registry.sandboxes()[0].members}
        podman("kill", group)
        changes = _until(registry, "container gone", lambda found: found is None)
        assert [again] == changes.left
    finally:
        podman("rm", "--force", "--time", "0", group)
        podman("rmi", "--force", "agentzip-test")


def test_a_gvisor_sandbox_is_refused_with_its_reason(
    group: str, registry: Registry, program: Path, tmp_path: Path
) -> None:
    """Its memory is one shared memfd, of which no page can leave from outside."""
    runsc = needed_program("runsc", _GVISOR)
    tree = next((found for found in hierarchies() if found.version == 2), None)
    if tree is None:
        pytest.skip("no unified hierarchy on this host")
    folder = Path(tree.mount) / group
    folder.mkdir()
    bundle = _bundle(tmp_path / "bundle", program, f"/{group}")
    # The one of 2022 cannot make groups in a hybrid layout: it is started inside of one.
    command = [
        *(runsc, "--root", str(tmp_path / "state"), "--platform=ptrace", "--ignore-cgroups"),
        "--network=none",
    ]
    container = subprocess.Popen(
        [
            *("sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh", *command),
            *("run", "--bundle", str(bundle), group),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert container.stdout is not None
        assert container.stdout.readline().startswith(b"ready"), "the program inside did not start"
        _until(registry, "refused", lambda found: found is not None and bool(found.refused))
        (sandbox,) = registry.sandboxes()
        assert gvisor.REASON == sandbox.refused
        assert not sandbox.enabled
    finally:
        subprocess.run([*command, "kill", group, "KILL"], check=False, timeout=CALL_SECONDS)
        _ended(container)
        subprocess.run([*command, "delete", "--force", group], check=False, timeout=CALL_SECONDS)
        with suppress(OSError):
            (folder / "cgroup.kill").write_text("1")

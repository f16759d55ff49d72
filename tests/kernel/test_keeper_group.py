"""
The keeper survives whoever ends all members of the daemon's control group.

The group is made here, below the one that the tests run in, and removed at the end.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip.children import Child
from agentzip.host.doctor import examine_keeper
from agentzip.host.groups import KeeperGroup, group_of
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(60)

_DAEMON = """
import sys
from pathlib import Path
from agentzip import daemon, model
group = Path(sys.argv[2]) / "cgroup.procs"
group.write_text("0")
service = daemon.Daemon(model.Settings(run_dir=Path(sys.argv[1])))
service.start()
for pid in map(int, sys.argv[3:]):
    service.engine.attach(pid)
    service.engine.page_out(pid)
print(service.engine.stats().keeper_pid, *service.engine.adopted(), flush=True)
with daemon.stop_on_signals(service):
    outcome = service.serve()
assert outcome.complete, outcome
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """An empty control group of our own."""
    mounts = [
        Path(line.split()[1])
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if line.split()[2] == "cgroup2"
    ]
    own = group_of(os.getpid())
    if not mounts or own is None:
        pytest.skip("this host has no unified control group hierarchy")
    folder = mounts[0] / own.lstrip("/") / f"agentzip-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"a control group cannot be made here: {error}")
    yield folder
    # Groups that a failed test left below go first.
    for left in [*folder.glob("agentzip-keeper-*"), folder]:
        with suppress(OSError):
            left.rmdir()
    assert not folder.exists(), "the control group is still in use"


def _start(stage: Stage, group: Path, *pids: int) -> Child:
    command = [sys.executable, "-c", _DAEMON, str(stage.run_dir), str(group), *map(str, pids)]
    return Child(subprocess.Popen(command, stdout=subprocess.PIPE))


def _said(daemon: Child) -> list[int]:
    assert daemon.process.stdout is not None
    return [int(word) for word in daemon.process.stdout.readline().split()]


def _members(group: Path) -> list[int]:
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def test_the_keeper_outlives_the_members_of_the_daemons_group(group: Path) -> None:
    """All members of the group are killed; the next daemon finds every page."""
    with Stage() as stage:
        target = stage.memory(4)
        with _start(stage, group, target.pid) as daemon:
            keeper = _said(daemon)[0]
            assert examine_keeper(daemon.pid, keeper).status == "ok"
            assert [daemon.pid] == _members(group)
            for pid in _members(group):
                os.kill(pid, signal.SIGKILL)
            daemon.process.wait(10)
            assert Path(f"/proc/{keeper}").exists()
        with _start(stage, group) as daemon:
            following, *adopted = _said(daemon)
            assert [target.pid] == adopted
            assert following != keeper
            target.verify()
            daemon.process.terminate()
            assert 0 == daemon.process.wait(20)
        target.verify()
        assert [] == list(group.glob("agentzip-keeper-*")), "the keeper's group is left behind"


def test_a_keeper_that_took_over_is_put_aside_too(group: Path) -> None:
    """A keeper that replaces a killed one goes into the group of its own as well."""
    with Stage() as stage, _start(stage, group) as daemon:
        keeper = _said(daemon)[0]
        os.kill(keeper, signal.SIGKILL)

        def replaced() -> bool:
            (folder,) = group.glob("agentzip-keeper-*")
            return _members(group) == [daemon.pid] and _members(folder) not in ([], [keeper])

        assert wait_until(replaced, 10)
        daemon.process.terminate()
        assert 0 == daemon.process.wait(20)


def test_the_doctor_warns_of_a_shared_group(group: Path) -> None:
    """Two processes in one group: who ends the group ends both."""
    sleep = "import time; time.sleep(60)"
    with (
        Child(subprocess.Popen([sys.executable, "-c", sleep])) as daemon,
        Child(subprocess.Popen([sys.executable, "-c", sleep])) as keeper,
    ):
        for child in (daemon, keeper):
            (group / "cgroup.procs").write_text(str(child.pid))
        finding = examine_keeper(daemon.pid, keeper.pid)

        assert "warn" == finding.status
        assert group_of(daemon.pid) in finding.cause.split()
        assert "KillMode=process" in finding.fix


def test_a_group_that_cannot_be_made_changes_nothing(tmp_path: Path) -> None:
    """In the root group, or without a unified hierarchy, the keeper stays where it is."""
    (tmp_path / "proc" / str(os.getpid())).mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir()
    for text in ("0::/\n", "4:memory:/x\n"):
        (tmp_path / "proc" / str(os.getpid()) / "cgroup").write_text(text)
        keeper_group = KeeperGroup(tmp_path, tmp_path)
        assert not keeper_group.take(os.getpid())
        keeper_group.remove()

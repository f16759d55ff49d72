"""
`analyze --cgroup` on real control groups: their processes, whoever is in them, and no others.

The groups are made here, below the root of the unified hierarchy, and removed at the end.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip.cli import main
from agentzip.host.cgroups import hierarchies
from agentzip.selftest.stage import Stage

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Two sandboxes' groups, one with a group below it, and a group of something else."""
    unified = [found for found in hierarchies() if found.version == 2]
    if not unified:
        pytest.skip("this host has no unified control group hierarchy")
    name = f"agentzip-test-{os.getpid()}"
    top = Path(unified[0].mount) / f"{name}.slice"
    folders = [top / f"{name}-1.scope", top / f"{name}-2.scope" / "inner", top / "other.scope"]
    try:
        for folder in folders:
            folder.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"a control group cannot be made here: {error}")
    yield folders
    for folder in (*folders, folders[1].parent, top):
        with suppress(FileNotFoundError):
            folder.rmdir()


def test_processes_of_the_matching_groups_are_sampled(
    groups: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nested ones belong to the group above; those of other groups are not looked at."""
    with Stage() as stage:
        memory = stage.memory(16)
        others = [
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            for _ in range(2)
        ]
        pids = [memory.pid, *(other.pid for other in others)]
        try:
            for folder, pid in zip(groups, pids, strict=True):
                (folder / "cgroup.procs").write_text(str(pid))
            command = ["--run-dir", str(tmp_path), "analyze", "--json", "--cgroup"]
            code = main([*command, f"agentzip-test-{os.getpid()}-?.scope"])
        finally:
            for other in others:
                other.kill()
                other.communicate()
        memory.stop()
    shown = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert [[pids[0]], [pids[1]]] == [group["pids"] for group in shown["cgroups"]]
    assert shown["cgroups"][0]["cgroup"].endswith("-1.scope")
    assert shown["processes"][0]["rss_bytes"] > 16 * 2**20
    assert shown["cgroups"][0]["verdict"]["ratio"] > 1

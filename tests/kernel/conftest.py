"""A control group for one test, removed at its end with all that is in it."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentzip.bench.fanout.places import remove_tree
from agentzip.host.cgroups import hierarchies


@pytest.fixture
def group() -> Iterator[Path]:
    """An empty control group of our own."""
    mounts = [found.mount for found in hierarchies() if found.version == 2]
    if not mounts:
        pytest.skip("this host has no unified hierarchy")
    folder = Path(mounts[0]) / f"agent-sandbox-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"a control group cannot be made here: {error}")
    yield folder
    with suppress(OSError):
        (folder / "cgroup.kill").write_text("1")
    assert remove_tree(folder, 10), "the control group stays"

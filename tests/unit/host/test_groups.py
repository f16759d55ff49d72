"""Which processes cannot run because their control group is frozen."""

from pathlib import Path

import pytest

from agentzip.errors import TargetBusy
from agentzip.host.groups import is_frozen, refuse_frozen
from unit.host.fake_host import FakeHost


def _in_groups(host: FakeHost, pid: int, *lines: str) -> None:
    host.start(pid)
    (host.root / "proc" / str(pid) / "cgroup").write_text("\n".join(lines) + "\n")


def test_a_frozen_group_of_the_unified_hierarchy_is_seen(tmp_path: Path) -> None:
    """Whatever froze it, the kernel says so in the group itself."""
    host = FakeHost(tmp_path)
    host.group("box", 7, frozen=True)
    host.group("other", 8)
    _in_groups(host, 7, "0::/box")
    _in_groups(host, 8, "0::/other")

    assert (True, False) == (is_frozen(7, host.root), is_frozen(8, host.root))
    with pytest.raises(TargetBusy, match="process 7 is frozen"):
        refuse_frozen(7, host.root)
    refuse_frozen(8, host.root)


def test_a_frozen_group_of_the_older_freezer_is_seen(tmp_path: Path) -> None:
    """On its way there counts as well."""
    host = FakeHost(tmp_path, v1=("freezer",), v2="unified")
    folder = host.group("box", 7, hierarchy="freezer")
    _in_groups(host, 7, "5:freezer:/box", "0::/")
    for state, frozen in (("FROZEN\n", True), ("FREEZING\n", True), ("THAWED\n", False)):
        (folder / "freezer.state").write_text(state)
        assert frozen == is_frozen(7, host.root)


def test_who_has_gone_is_not_frozen(tmp_path: Path) -> None:
    """What comes next says that it has gone."""
    host = FakeHost(tmp_path)
    assert not is_frozen(7, host.root)
    _in_groups(host, 8, "0::/removed")
    assert not is_frozen(8, host.root)

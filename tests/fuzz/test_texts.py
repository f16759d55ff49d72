"""Texts that programs of a sandbox can influence, as the kernel shows them, and patterns."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentzip.errors import InvalidSetting
from agentzip.host import groups as control_groups
from agentzip.host import processes
from agentzip.host.cgroups import hierarchies
from agentzip.policy import patterns
from agentzip.selftest import conditions
from fuzz_cases import cases

_NAMES = st.binary(max_size=15).map(lambda name: name.replace(b"\0", b""))
"""What prctl(PR_SET_NAME) takes: any bytes, brackets and line ends included."""

_PID = 7


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A host with a process of its own."""
    made = tmp_path_factory.mktemp("root")
    (made / "proc" / str(_PID)).mkdir(parents=True)
    return made


def _write(root: Path, name: str, content: bytes) -> None:
    (root / "proc" / str(_PID) / name).write_bytes(content)


@cases(400)
@given(_NAMES, st.binary(max_size=40), st.integers(0, 2**31), st.integers(0, 2**63))
def test_a_process_cannot_lie_by_its_name(
    root: Path, name: bytes, arguments: bytes, parent: int, start_time: int
) -> None:
    """Parent, state and start time are the kernel's, whatever the name holds."""
    fields = b" ".join([b"S", b"%d" % parent, *[b"0"] * 17, b"%d" % start_time, *[b"0"] * 30])
    _write(root, "stat", b"%d (%s) %s\n" % (_PID, name, fields))
    _write(root, "cmdline", arguments)

    found = processes.process(_PID, root)

    assert (parent, "S", start_time) == (found.parent, found.state, found.start_time)


@cases(300)
@given(
    _NAMES | st.sampled_from([b"\rUid:\t0\t0\t0", b"\x0bUid:\t0\t0\t0\t0"]), st.integers(1, 2**31)
)
def test_nobody_becomes_root_by_a_name(root: Path, name: bytes, uid: int) -> None:
    """Whose rights a process has is read from the kernel's own line, and so is its tracer."""
    (root / "proc" / str(_PID) / "task" / "8").mkdir(parents=True, exist_ok=True)
    shown = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    uids = b"\t".join([b"Uid:", *[b"%d" % uid] * 4])
    status = b"Name:\t%s\nState:\tS\nTracerPid:\t%d\n%s\n" % (shown, uid, uids)
    _write(root, "status", status)
    _write(root, "task/8/status", status)

    assert uid == processes.effective_uid(_PID, root)
    assert {8: uid} == processes.tracers(_PID, root)


@cases(300)
@given(st.binary(max_size=40).map(lambda name: name.replace(b"\n", b"").replace(b"\0", b"")))
def test_a_group_cannot_lie_by_its_name(root: Path, name: bytes) -> None:
    """Who may make groups below its own stays in it, whatever it calls them."""
    path = b"/box/" + name
    _write(root, "cgroup", b"1:freezer:%s\n0::%s\n" % (path, path))

    assert os.fsdecode(path) == control_groups.group_of(_PID, root)
    assert not control_groups.is_frozen(_PID, root)


@cases(300)
@given(st.binary(max_size=200))
def test_any_environment_is_read(root: Path, block: bytes) -> None:
    """A program may write over its own."""
    _write(root, "environ", block)

    assert all("=" not in name for name in processes.environment(_PID, root))


_PATHS = st.text("/ax :-[]()\\012u mwVFlags\r\x0b\x1c\x85\u2028", max_size=30)
"""Of what the kernel shows as it is, all that Python takes for the end of a line."""


@cases(300)
@given(st.lists(st.tuples(_PATHS, st.booleans()), max_size=6))
def test_a_mapping_cannot_lie_by_its_path(root: Path, mappings: list[tuple[str, bool]]) -> None:
    """Mappings and their flags are told apart although a path may look like either."""
    text = "".join(
        f"{page:x}000-{page + 1:x}000 rw-p 00000000 fe:00 {page}      /{path.strip()}\n"
        f"Rss:     4 kB\nVmFlags: rd wr {'um ' if watched else ''}sd\n"
        for page, (path, watched) in enumerate(mappings, 16)
    )
    _write(root, "smaps", text.encode())

    found = conditions._mappings(root / "proc" / str(_PID))

    assert [watched for _, watched in mappings] == ["um" in m.flags.split() for m in found]
    assert sum(watched for _, watched in mappings) == processes.faults_handled_elsewhere(_PID, root)


@cases(300)
@given(st.text(max_size=30), st.text(max_size=60))
def test_any_pattern_is_checked_or_refused(pattern: str, path: str) -> None:
    """What is taken can be asked, stays as it is, and selects neither nothing nor the root."""
    try:
        checked = patterns.checked(pattern)
    except InvalidSetting:
        return
    assert checked == patterns.checked(checked)
    patterns.matches(checked, path)
    assert not patterns.matches(checked, "")


@cases(300)
@given(st.binary(max_size=40).map(lambda name: name.translate(None, b"\0 \t\n\\")))
def test_a_mount_cannot_lie_by_its_place(root: Path, name: bytes) -> None:
    """A hierarchy is found where it is; blanks and line feeds the kernel shows as numbers."""
    (root / "proc" / "self").mkdir(exist_ok=True)
    line = b"31 25 0:27 / /mnt/\\040%s rw,nosuid - cgroup2 cgroup2 rw\n" % name
    (root / "proc" / "self" / "mountinfo").write_bytes(line)

    place = str(root / "mnt") + "/ " + os.fsdecode(name)
    assert [Path(place)] == [Path(found.mount) for found in hierarchies(root)]
    assert Path(place) == control_groups.unified_mount(root)


def test_patterns_select_as_the_kernel_names_groups() -> None:
    """Names of groups are bytes; what is not UTF-8 is shown as Python shows file names."""
    assert patterns.matches(patterns.checked("agent-*"), os.fsdecode(b"agent-\xff"))

"""What the doctor says of whatever else deals with memory, on hosts laid out in a folder."""

from pathlib import Path

import pytest

from agentzip.host.finding import Finding
from agentzip.host.surroundings import look_around
from quiet_host import QUIET, lay_out

V1 = "31 24 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n"


def look(root: Path, **changed: str | None) -> dict[str, Finding]:
    """Findings by name on a quiet host but for some files; `__` stands for `/`, None for none."""
    lay_out(root, QUIET)
    for name, text in changed.items():
        path = name.replace("__", "/")
        if text is None:
            (root / path).unlink()
        else:
            lay_out(root, {path: text})
    return {finding.name: finding for finding in look_around(root)}


def only(findings: dict[str, Finding]) -> Finding:
    """The one finding that is not ok; it says why it matters and what to do."""
    (found,) = [finding for finding in findings.values() if finding.status != "ok"]
    assert found.why
    assert found.fix
    return found


def test_a_quiet_host_has_nothing_but_ok(tmp_path: Path) -> None:
    """Where nothing interferes nothing needs a fix."""
    findings = look(tmp_path)

    assert {"ok"} == {finding.status for finding in findings.values()}
    assert {""} == {finding.fix + finding.why for finding in findings.values()}


def test_a_host_that_shows_nothing_is_judged_all_the_same(tmp_path: Path) -> None:
    """In an empty /proc and /sys every check has its answer."""
    statuses = {finding.name: finding.status for finding in look_around(tmp_path)}

    assert {"control groups", "pressure (PSI)"} == {
        name for name, status in statuses.items() if status != "ok"
    }


@pytest.mark.parametrize(
    ("zswap", "area", "consequence"),
    [
        ("Y", "/swapfile", "a second time"),
        ("N", "/dev/zram0", "a second time"),
        ("N", "/swapfile", "in clear"),
    ],
)
def test_swap_below_the_pool_warns(tmp_path: Path, zswap: str, area: str, consequence: str) -> None:
    """Active swap can take the pool's own pages; the fix concerns the daemon alone."""
    found = only(
        look(
            tmp_path,
            proc__swaps=f"Filename Type Size\n{area} file 1000\n",
            sys__module__zswap__parameters__enabled=f"{zswap}\n",
        )
    )

    assert ("warn", "swap below the pool") == (found.status, found.name)
    assert consequence in found.cause
    assert area in found.cause
    assert "memory.swap.max=0" in found.fix


def test_the_fix_for_swap_is_one_that_the_host_has(tmp_path: Path) -> None:
    """Without v2 no group has memory.swap.max, so another way is named first."""
    findings = look(tmp_path, proc__swaps="Filename\n/dev/zram0 1\n", proc__self__mountinfo=V1)

    assert findings["swap below the pool"].fix.startswith("give the daemon CAP_IPC_LOCK")


def test_zswap_without_swap_does_nothing(tmp_path: Path) -> None:
    """It is mentioned, and nothing is to be done."""
    findings = look(tmp_path, sys__module__zswap__parameters__enabled="Y\n")

    assert "ok" == findings["swap below the pool"].status
    assert "without effect" in findings["swap below the pool"].cause


def test_huge_pages_always_is_a_note(tmp_path: Path) -> None:
    """Huge pages are split when they leave."""
    found = only(
        look(
            tmp_path,
            sys__kernel__mm__transparent_hugepage__enabled="[always] madvise never\n",
        )
    )

    assert ("note", "transparent huge pages") == (found.status, found.name)


def test_a_khugepaged_that_fills_holes_is_a_note(tmp_path: Path) -> None:
    """Where there are no huge pages it does nothing, whatever it is set to."""
    where = "sys__kernel__mm__transparent_hugepage__khugepaged__max_ptes_none"
    never = "sys__kernel__mm__transparent_hugepage__enabled"
    found = only(look(tmp_path, **{where: "511\n"}))

    assert "511 of 512" in found.cause
    assert "max_ptes_none" in found.fix
    assert "ok" == look(tmp_path, **{where: "511", never: "[never]"})["khugepaged"].status


@pytest.mark.parametrize(
    ("mounts", "status", "missing"),
    [
        (QUIET["proc/self/mountinfo"] + V1, "note", "memory.reclaim"),
        (V1, "warn", "keeper"),
        ("", "warn", "find no sandbox"),
    ],
)
def test_older_control_groups_say_what_is_missing(
    tmp_path: Path, mounts: str, status: str, missing: str
) -> None:
    """Each mode has its own consequences."""
    found = only(look(tmp_path, proc__self__mountinfo=mounts))

    assert ("control groups", status) == (found.name, status)
    assert status == found.status
    assert missing in found.why


@pytest.mark.parametrize("pressure", [None, ""])
def test_no_pressure_figures_are_a_warning(tmp_path: Path, pressure: str | None) -> None:
    """Missing, or there and switched off."""
    found = only(look(tmp_path, proc__pressure__memory=pressure))

    assert "psi=1" in found.fix


def test_same_page_merging_is_a_note(tmp_path: Path) -> None:
    """Running or not is what counts; 2 means that what was merged is taken apart."""
    found = only(
        look(
            tmp_path,
            sys__kernel__mm__ksm__run="1\n",
            sys__kernel__mm__ksm__pages_sharing="4711\n",
        )
    )

    assert "4711 pages" in found.cause
    assert "ok" == look(tmp_path, sys__kernel__mm__ksm__run="2\n")[found.name].status


def test_a_kernel_that_pages_out_by_itself_warns(tmp_path: Path) -> None:
    """DAMON alone is no trouble; its reclaim takes the same pages."""
    found = only(look(tmp_path, sys__module__damon_reclaim__parameters__enabled="Y\n"))

    assert ("warn", "DAMON") == (found.status, found.name)


@pytest.mark.parametrize(("promised", "status"), [(500_000, "note"), (3_900_000, "warn")])
def test_strict_overcommit_counts_what_is_left(tmp_path: Path, promised: int, status: str) -> None:
    """With room it is good to know, without it attaches fail."""
    found = only(
        look(
            tmp_path,
            proc__sys__vm__overcommit_memory="2\n",
            proc__meminfo=f"CommitLimit: 4000000 kB\nCommitted_AS: {promised} kB\n",
        )
    )

    assert ("overcommit", status) == (found.name, found.status)


def test_userfaultfd_for_everybody_is_advised_against(tmp_path: Path) -> None:
    """The fix makes the host tighter, never looser."""
    found = only(look(tmp_path, proc__sys__vm__unprivileged_userfaultfd="1\n"))

    assert found.fix.startswith("write 0 to")


def test_a_process_near_the_limit_of_mappings_is_named(tmp_path: Path) -> None:
    """The largest one counts, from four fifths of the limit on."""
    maps = {f"proc__{pid}__maps": "x\n" * pid for pid in (10, 79)}
    commands = {f"proc__{pid}__comm": "node\n" for pid in (10, 79, 80)}

    assert "ok" == look(tmp_path, **maps, **commands)["mappings of a process"].status
    found = only(look(tmp_path, **maps, **commands, proc__80__maps="x\n" * 80))

    assert "process 80 has 80 of the 100" in found.cause
    assert "400" in found.fix


def test_few_free_descriptors_warn(tmp_path: Path) -> None:
    """From four fifths on."""
    found = only(look(tmp_path, **{"proc__sys__fs__file-nr": "80000\t0\t100000\n"}))

    assert "80000 of 100000" in found.cause


@pytest.mark.parametrize(
    ("comm", "fix"),
    [
        ("earlyoom", "--avoid"),
        ("systemd-oomd", "ManagedOOMPreference=omit"),
        ("oomd", "ruleset"),
        ("nohang", "nohang.conf"),
    ],
)
def test_programs_that_end_others_are_named(tmp_path: Path, comm: str, fix: str) -> None:
    """Each with the change that spares the daemon."""
    found = only(look(tmp_path, proc__77__comm=f"{comm}\n", proc__77__maps=""))

    assert f"{comm} (process 77)" in found.cause
    assert fix in found.fix

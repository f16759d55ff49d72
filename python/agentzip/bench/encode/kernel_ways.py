"""
The kernel's own ways on the same processes: compressed swap in memory, and merging equal pages.

Each takes what belongs to the whole host (/dev/zram0, KSM's settings) only when nobody uses it,
and gives it back as it was.  Both look at the memory that the engine would take.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentzip import pager
from agentzip.bench import zram
from agentzip.bench.encode.paging import Portion, portions
from agentzip.bench.encode.result import PAGE_BYTES, EncodingResult, Spread, page_ratio
from agentzip.bench.encode.stage import Baseline, note_gain, step_all, undo_and_compare
from agentzip.errors import InternalError
from agentzip.workloads.crew import Sandbox

__all__ = [
    "KSM_ITEM_BYTES",
    "ksm_items",
    "ksm_scanning",
    "ksm_why_not",
    "ksmd_seconds",
    "measure_ksm",
    "measure_zram",
]

_FAULTS_A_RANGE = 16
"""Faults timed in each range: some thousands in all."""

_SWAPPED = 1 << 62
"""Bit of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst)."""

_KSM = Path("/sys/kernel/mm/ksm")
_KSM_SCANS = 3
"""The first scan only notes checksums, the second merges, the third catches what moved."""
_KSM_SECONDS_MAX = 180.0
KSM_ITEM_BYTES = 64
"""The kernel's own bookkeeping of one scanned page (struct ksm_rmap_item)."""
_KSM_SETTINGS = {"pages_to_scan": "20000", "sleep_millisecs": "1", "smart_scan": "0"}
"""Full scans in seconds instead of minutes; what is found is the same."""
_KSM_STOP, _KSM_MERGE, _KSM_UNMERGE = "0", "1", "2"


def measure_zram(
    sandboxes: Sequence[Sandbox], name: str, baseline: Baseline, steps: int
) -> EncodingResult:
    """Everything out to zram, touched, home, compared."""
    result = EncodingResult(name, len(sandboxes))
    with ExitStack() as stack:
        # The kernel may choose to page out others a little, too.
        stack.enter_context(zram.compressed_device(2 * sum(baseline.rss)))
        samples: list[float] = []
        pids = [pid for sandbox in sandboxes for pid in sandbox.pids()]
        took = {pid: portions(pager.regions(pid)) for pid in pids}
        began = time.process_time()
        for pid, ranges in took.items():
            samples += _page_out(pid, ranges)
        result.cpu_s = time.process_time() - began
        result.encode_us = Spread.of(samples)
        held = zram.stored()
        note_gain(
            result,
            sandboxes,
            baseline,
            pool_bytes=held.used_bytes,
            table_bytes=0,
            overhead_bytes=0,
        )
        result.pages_same_filled = held.pages_same_filled
        result.pages_stored = held.original_bytes // PAGE_BYTES - held.pages_same_filled
        result.payload_bytes = held.encoded_bytes
        result.page_ratio = page_ratio(result.pages_stored, held.encoded_bytes)
        if held.encoded_bytes:
            result.pool_waste = held.used_bytes / held.encoded_bytes - 1
        result.step_ms = step_all(sandboxes, steps)
        faults = [_fault_in(pid, ranges) for pid, ranges in took.items()]
        result.fault_us = Spread.of([sample for found in faults for sample in found])
        result.decode_us = result.fault_us
        result.results_wrong = undo_and_compare(sandboxes, steps, baseline)
    return result


def _page_out(pid: int, ranges: list[Portion]) -> list[float]:
    """Everything out, portion by portion; microseconds a page of each."""
    samples = []
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return []  # Browsers end their spare processes as they like.
    try:
        swapped = _swapped_pages(pid)
        for portion in ranges:
            began = time.perf_counter()
            for start, end in portion:
                zram.advise(handle, start, end, zram.MADV_PAGEOUT)
            elapsed = time.perf_counter() - began
            before, swapped = swapped, _swapped_pages(pid)
            if swapped > before:
                samples.append(elapsed * 1e6 / (swapped - before))
    finally:
        os.close(handle)
    return samples


def _fault_in(pid: int, ranges: list[Portion]) -> list[float]:
    """Read one byte of some swapped pages from outside, which faults them in; microseconds each."""
    samples = []
    folder = Path(f"/proc/{pid}")
    try:
        pagemap = (folder / "pagemap").open("rb", buffering=0)
        memory = (folder / "mem").open("rb", buffering=0)
    except OSError:
        return []
    with pagemap, memory:
        for start, end in (found for portion in ranges for found in portion):
            stride = max(1, (end - start) // PAGE_BYTES // _FAULTS_A_RANGE)
            for page in range(start // PAGE_BYTES, end // PAGE_BYTES, stride):
                entry = int.from_bytes(os.pread(pagemap.fileno(), 8, 8 * page), sys.byteorder)
                if not entry & _SWAPPED:
                    continue
                began = time.perf_counter()
                os.pread(memory.fileno(), 1, page * PAGE_BYTES)
                samples.append((time.perf_counter() - began) * 1e6)
    return samples


def _swapped_pages(pid: int) -> int:
    # The call succeeds without any swap, too; only this tells that pages left.
    status = Path(f"/proc/{pid}/status").read_text()
    line = next((line for line in status.splitlines() if line.startswith("VmSwap")), "VmSwap: 0")
    return int(line.split()[1]) * 1024 // PAGE_BYTES


def ksm_why_not(root: Path = Path("/")) -> str:
    """Why KSM cannot be measured now; empty if it can."""
    folder = root / _KSM.relative_to("/")
    if not folder.is_dir():
        return "this kernel has no KSM"
    if (folder / "run").read_text().strip() != _KSM_STOP:
        return "KSM is in use"
    if (folder / "pages_shared").read_text().strip() != "0":
        return "KSM holds pages of others"
    return ""


def measure_ksm(
    sandboxes: Sequence[Sandbox], name: str, baseline: Baseline, steps: int
) -> EncodingResult | str:
    """
    Let KSM scan, see what it merged, take the merges apart again.

    Returns:
        The figures, or the reason why there are none.
    """
    result = EncodingResult(name, len(sandboxes))
    pids = [pid for sandbox in sandboxes for pid in sandbox.pids()]
    candidates = sum(
        region.resident_bytes // PAGE_BYTES
        for pid in pids
        for region in pager.regions(pid)
        if region.movable
    )
    with ksm_scanning(_KSM_SETTINGS):
        before = ksmd_seconds()
        scans = list(_scan_often(candidates))
        result.cpu_s = ksmd_seconds() - before
        saved = _ksm("pages_sharing")
        items = sum(ksm_items(pid) for pid in pids)
        if not items:
            return "this kernel does not let a program ask for KSM (PR_SET_MEMORY_MERGE)"
        note_gain(
            result,
            sandboxes,
            baseline,
            pool_bytes=0,
            table_bytes=items * KSM_ITEM_BYTES,
            overhead_bytes=0,
        )
        result.encode_us = Spread.of(scans)
        result.pages_stored = candidates
        result.pages_deduplicated = saved
        result.page_ratio = candidates / max(1, candidates - saved)
        result.step_ms = step_all(sandboxes, steps)
    result.results_wrong = undo_and_compare(sandboxes, steps, baseline)
    return result


@contextmanager
def ksm_scanning(settings: Mapping[str, str]) -> Iterator[None]:
    """KSM at work at this pace; stopped, unmerged and set as it was on the way out."""
    former = {
        name: (_KSM / name).read_text().strip() for name in settings if (_KSM / name).exists()
    }
    try:
        for name in former:
            (_KSM / name).write_text(settings[name])
        (_KSM / "run").write_text(_KSM_MERGE)
        yield
    finally:
        (_KSM / "run").write_text(_KSM_UNMERGE)
        (_KSM / "run").write_text(_KSM_STOP)
        for name, value in former.items():
            (_KSM / name).write_text(value)


def _scan_often(candidates: int) -> Iterator[float]:
    """Wait for some full scans; ksmd's microseconds a page in each."""
    deadline = time.monotonic() + _KSM_SECONDS_MAX
    for _ in range(_KSM_SCANS):
        done, began = _ksm("full_scans"), ksmd_seconds()
        while _ksm("full_scans") == done:
            if time.monotonic() > deadline:
                raise InternalError("KSM does not come to the end of its scans")
            time.sleep(0.05)
        yield (ksmd_seconds() - began) * 1e6 / max(1, candidates)


def _ksm(name: str) -> int:
    return int((_KSM / name).read_text())


def ksm_items(pid: int) -> int:
    """Pages of a process that KSM keeps books of."""
    try:
        text = Path(f"/proc/{pid}/ksm_stat").read_text()
    except OSError:
        return 0
    fields = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) == 2)
    return int(fields.get("ksm_rmap_items", 0))


def ksmd_seconds() -> float:
    """Processor time of the kernel's merging thread."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            if "(ksmd)" in stat:
                fields = stat.rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0

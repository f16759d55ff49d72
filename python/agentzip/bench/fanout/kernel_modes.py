"""
The peers: what the kernel itself offers for the same sandboxes.

`zram` and `zswap`: process_madvise(PAGEOUT) when a sandbox begins to wait, WILLNEED when it goes
on, for the memory that the engine would take.  `ksm`: equal pages are merged all the time.
What they take of the host is held by a custody process, which gives it back however we end.
"""

import os
import threading
import time
from pathlib import Path

from agentzip import pager
from agentzip.bench import zram
from agentzip.bench.encode.kernel_ways import (
    KSM_ITEM_BYTES,
    ksm_items,
    ksm_why_not,
    ksmd_seconds,
)
from agentzip.bench.fanout.crew import Crew, Member
from agentzip.bench.fanout.custody import Custody, zswap_why_not
from agentzip.bench.fanout.modes import Mode, Worker, kernel_thread_seconds, major_faults
from agentzip.bench.fanout.readings import Cpu, Footprint
from agentzip.errors import AgentZipError, InternalError, Unsupported
from agentzip.host import memory
from agentzip.host.memory import ROOT

__all__ = ["KsmMode", "ZramMode", "ZswapMode"]


class _SwapMode(Mode):
    """Advice to page out and in; where pages go is up to the kinds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._crew: Crew | None = None
        self._custody: Custody | None = None
        self._worker = Worker()
        self._advice_s = 0.0
        self._unmapped_before = 0
        self._counting = threading.Lock()

    def _take(self, bytes_max: int) -> Custody:
        raise NotImplementedError

    def start(self, crew: Crew) -> None:
        """Take the swap; it has room for all sandboxes, encoded or not."""
        self._crew = crew
        self._custody = self._take(2 * crew.plan.rss_bytes + 2**30)
        self._unmapped_before = memory.unmapped_anonymous()

    def footprint(self) -> Footprint:
        """
        What holds the encoded pages, and what was read in and is not mapped.

        Advice reads into the swap cache.  A page there that the sandbox does not touch stays when
        the sandbox is paged out again, which looks at mapped pages only.
        """
        unmapped = memory.unmapped_anonymous() - self._unmapped_before
        return Footprint(pool=self._stored_bytes(), unmapped=max(unmapped, 0))

    def _stored_bytes(self) -> int:
        raise NotImplementedError

    def idle(self, member: Member) -> None:
        """Have it paged out."""
        self._worker.give(member, self._page_out)

    def resume(self, member: Member) -> bool:
        """Have it read in before it runs."""
        self.wake(member)
        return True

    def wake(self, member: Member) -> None:
        """Have it read in while it runs: the advice would hold it up for as long as it takes."""
        self._worker.give(member, lambda found: self._advise(found, zram.MADV_WILLNEED))

    def cpu(self) -> Cpu:
        """Of the advice, which works in our threads, and of kswapd."""
        return Cpu(advice=self._advice_s, kernel=kernel_thread_seconds("kswapd"))

    def faults(self) -> int:
        """Major faults of all sandboxes."""
        return major_faults(self._crew)

    def stop(self) -> None:
        """Give the swap back; best when the sandboxes have ended, or it brings them home first."""
        self._worker.close()
        if self._custody is not None:
            self._custody.stop()
            self._custody = None
        if failure := self._worker.failure():
            raise failure

    def _page_out(self, member: Member) -> None:
        if member.waiting:
            self._advise(member, zram.MADV_PAGEOUT)

    def _advise(self, member: Member, advice: int) -> None:
        began = time.thread_time()
        for pid in member.pids():
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                for region in pager.regions(pid):
                    if region.movable:
                        zram.advise(handle, region.start, region.end, advice)
            except (AgentZipError, InternalError):
                # It ended, or unmapped the region meanwhile: there is nothing to advise.
                continue
            finally:
                os.close(handle)
        with self._counting:
            self._advice_s += time.thread_time() - began


class ZramMode(_SwapMode):
    """Compressed swap in memory, LZ4."""

    name = "zram"

    def _take(self, bytes_max: int) -> Custody:
        if reason := zram.why_not():
            raise Unsupported(reason)
        return Custody("zram", str(bytes_max))

    def _stored_bytes(self) -> int:
        return zram.stored().used_bytes


class ZswapMode(_SwapMode):
    """A compressed cache before a swap file."""

    name = "zswap"

    def _take(self, bytes_max: int) -> Custody:
        if reason := zswap_why_not():
            raise Unsupported(reason)
        return Custody("zswap", str(bytes_max), str(self._folder))

    def _stored_bytes(self) -> int:
        # What went on to the disk takes no memory, but time.
        text = (ROOT / "proc" / "meminfo").read_text()
        line = next(line for line in text.splitlines() if line.startswith("Zswap:"))
        return int(line.split()[1]) * 1024


class KsmMode(Mode):
    """Equal pages are merged, whether their sandboxes wait or not."""

    name = "ksm"
    mergeable = True

    def __init__(self) -> None:
        self._crew: Crew | None = None
        self._custody: Custody | None = None

    def start(self, crew: Crew) -> None:
        """Have KSM scan."""
        if reason := ksm_why_not():
            raise Unsupported(reason)
        self._crew = crew
        self._custody = Custody("ksm")

    def footprint(self) -> Footprint:
        """KSM's books; merged pages are in PSS already."""
        assert self._crew is not None
        items = sum(ksm_items(pid) for member in self._crew.members for pid in member.pids())
        return Footprint(tables=items * KSM_ITEM_BYTES)

    def cpu(self) -> Cpu:
        """Of ksmd and kswapd."""
        return Cpu(kernel=ksmd_seconds() + kernel_thread_seconds("kswapd"))

    def faults(self) -> int:
        """Major faults of all sandboxes; writes to merged pages are minor ones."""
        return major_faults(self._crew)

    def stop(self) -> None:
        """Stop KSM, unmerge, set it as it was."""
        if self._custody is not None:
            self._custody.stop()
            self._custody = None

"""
The kernel's own way: process_madvise(PAGEOUT) to compressed swap in memory, and back by touch.

It takes /dev/zram0 only if nobody uses it and no other swap is on (pages would go there as well),
and gives it back as it was, whatever happens.
"""

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agentzip.bench.figures import Ledger
from agentzip.bench.target import ALL_CPUS, ONE_CPU, HeapTarget
from agentzip.children import Stoppable
from agentzip.errors import InternalError

__all__ = [
    "MADV_PAGEOUT",
    "MADV_WILLNEED",
    "Stored",
    "ZramWay",
    "advise",
    "compressed_device",
    "stored",
    "why_not",
]

_DEVICE = Path("/dev/zram0")
_SETTINGS = Path("/sys/block/zram0")
_ALGORITHM = "lz4"

_RESET_TRIES = 50
"""A tenth of a second each."""

_SYS_PROCESS_MADVISE = 440
MADV_WILLNEED = 3
"""Read the pages in, soon."""
MADV_PAGEOUT = 21
"""Take the pages out, now."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the device says that it holds (`mm_stat`)."""

    original_bytes: int
    encoded_bytes: int
    used_bytes: int
    pages_same_filled: int


def why_not(root: Path = Path("/")) -> str:
    """Why this host's zram cannot be borrowed now; empty if it can."""
    settings = root / _SETTINGS.relative_to("/")
    if not (root / _DEVICE.relative_to("/")).exists() or not settings.is_dir():
        return "there is no /dev/zram0"
    if (settings / "disksize").read_text().strip() != "0":
        return "/dev/zram0 is in use"
    if len((root / "proc/swaps").read_text().splitlines()) > 1:
        return "another swap is active"
    known = (settings / "comp_algorithm").read_text().translate({ord("["): None, ord("]"): None})
    if _ALGORITHM not in known.split():
        return f"this kernel's zram has no {_ALGORITHM}"
    return ""


@contextmanager
def compressed_device(bytes_max: int) -> Iterator[None]:
    """
    Borrow /dev/zram0 as the host's only swap; it is given back as it was.

    Raises:
        InternalError: somebody else took it first, or it could not be given back.
    """
    former = _selected((_SETTINGS / "comp_algorithm").read_text())
    try:
        (_SETTINGS / "comp_algorithm").write_text(_ALGORITHM)
        # The kernel takes a size once: whoever gets this through owns the device from here on.
        (_SETTINGS / "disksize").write_text(str(bytes_max))
    except OSError as error:
        raise InternalError(f"cannot take {_DEVICE}: {error}") from error
    try:
        # Read back: a refused name would leave the old algorithm under a wrong label.
        if _selected((_SETTINGS / "comp_algorithm").read_text()) != _ALGORITHM:
            raise InternalError(f"zram did not take {_ALGORITHM}")
        subprocess.run(["mkswap", str(_DEVICE)], check=True, capture_output=True)
        subprocess.run(["swapon", str(_DEVICE)], check=True, capture_output=True)
        yield
    finally:
        _give_back(former)


def stored(root: Path = Path("/")) -> Stored:
    """What the borrowed device holds now."""
    fields = (root / _SETTINGS.relative_to("/") / "mm_stat").read_text().split()
    return Stored(int(fields[0]), int(fields[1]), int(fields[2]), int(fields[5]))


def advise(pidfd: int, start: int, end: int, advice: int) -> None:
    """
    Give advice for a range of another process.

    Raises:
        InternalError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    while start < end:
        vector = (ctypes.c_uint64 * 2)(start, end - start)
        done = libc.syscall(
            *(ctypes.c_long(_SYS_PROCESS_MADVISE), ctypes.c_long(pidfd)),
            *(ctypes.byref(vector), ctypes.c_long(1), ctypes.c_long(advice), ctypes.c_long(0)),
        )
        if done <= 0:
            raise InternalError(f"process_madvise: {os.strerror(ctypes.get_errno())}")
        start += done


def _give_back(former: str) -> None:
    subprocess.run(["swapoff", str(_DEVICE)], check=False, capture_output=True)
    for _ in range(_RESET_TRIES):
        # Others, udev for one, may have it open for a moment after the swapoff.
        with suppress(OSError):
            (_SETTINGS / "reset").write_text("1")
            (_SETTINGS / "comp_algorithm").write_text(former)
            return
        time.sleep(0.1)
    raise InternalError(
        f"{_DEVICE} could not be given back",
        f"run swapoff {_DEVICE}, then write 1 to {_SETTINGS}/reset",
    )


def _selected(line: str) -> str:
    return line.partition("[")[2].partition("]")[0]


class ZramWay(Stoppable):
    """A target whose memory the kernel takes and gives back."""

    name = f"zram-{_ALGORITHM}"

    def __init__(self, mebibytes: int, folder: Path) -> None:
        self._target = HeapTarget(mebibytes, folder)
        self._pidfd = os.pidfd_open(self._target.pid)

    def stop(self) -> None:
        """End the target."""
        os.close(self._pidfd)
        # Before the swapoff, which would bring its memory home first.
        self._target.stop()

    def turn(self, number: int, touches: int, ledger: Ledger) -> int:
        """PAGEOUT, touches, the rest home by WILLNEED, PAGEOUT again, home by a sweep."""
        target = self._target
        target.fill(number)
        ledger.note("page_out", self.name, [self._advise(MADV_PAGEOUT)])
        self._check_out()
        target.pin({ONE_CPU})
        ledger.note("fault", self.name, target.touch(touches, 0, number))
        target.pin(ALL_CPUS)
        ledger.note("page_in", self.name, [self._advise(MADV_WILLNEED)])
        ledger.note("page_out_again", self.name, [self._advise(MADV_PAGEOUT)])
        self._advise(MADV_WILLNEED)
        ledger.note("fault_again", self.name, target.touch(touches, 0, number))
        target.sweep()
        return target.count_wrong()

    def _advise(self, advice: int) -> float:
        """Give one advice for the whole heap; microseconds per page."""
        start, end = self._target.heap
        began = time.perf_counter_ns()
        advise(self._pidfd, start, end, advice)
        return (time.perf_counter_ns() - began) / 1000 / self._target.pages

    def _check_out(self) -> None:
        # The call succeeds without any swap, too; only this tells that pages left.
        status = Path(f"/proc/{self._target.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmSwap"))
        if int(line.split()[1]) * 1024 < self._target.pages * 4096 // 2:
            raise InternalError(f"the kernel did not page out: {line}")

"""
A stored page whose bytes are damaged is never served: its toucher gets SIGBUS, loudly.

The damage is done to the pool's memory itself, through the engine's own descriptor of it, which is
what a flipped bit or a stray write would do.
"""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from agentzip.selftest.conditions import wait_until
from agentzip.selftest.registry import CheckFailed
from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(60)


def _pools() -> dict[int, int]:
    """Inodes of the pools that this process, the engine's, holds, and their descriptors."""
    held = {}
    for entry in Path("/proc/self/fd").iterdir():
        # The listing's own descriptor is gone by now.
        with contextlib.suppress(FileNotFoundError):
            if "memfd:agentzip:pool" in os.readlink(entry):
                held[os.stat(entry).st_ino] = int(entry.name)
    return held


@pytest.mark.parametrize("algorithm", ["raw", "lz4", "zstd"])
def test_a_damaged_page_is_a_bus_error_and_not_a_wrong_page(algorithm: str) -> None:
    """With one bit of each stored page flipped, the target gets SIGBUS, and the loss counts."""
    # An engine of another test may still be there.
    others = _pools()
    with Stage() as stage:
        engine = stage.open(algorithm=algorithm, level=None)
        target = stage.memory(4)
        stage.attach(target)
        stage.page_out(target)
        (pool,) = (number for inode, number in _pools().items() if inode not in others)
        used = engine.stats().pool_bytes
        assert used > 0
        for offset in range(0, used, 16):
            byte = os.pread(pool, 1, offset + 5)
            os.pwrite(pool, bytes([byte[0] ^ 1]), offset + 5)

        with pytest.raises(CheckFailed):
            target.command("verify", 10)

        wait_until(lambda: not target.alive(), 10)
        assert -signal.SIGBUS == target.wait(10)
        assert engine.stats().pages_lost > 0

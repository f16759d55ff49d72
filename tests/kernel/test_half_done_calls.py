"""
A call that has done a part of its work when it is stopped would return that part: it is not.

Found by CPython's own tests under page outs: a blocking write(2) into a full pipe came back with
64 KiB of a mebibyte, which a program without signal handlers never sees otherwise.
"""

import ctypes
import os
import select
import sys

import pytest

from agentzip.errors import TargetBusy
from agentzip.host import processes
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

pytestmark = pytest.mark.timeout(60)

_BYTES = 2**20
_PIPE_PAGES_FULL = 65536

_WRITER = f"""
import os
os.write(1, b"ready %d\\n" % os.getpid())
done = os.write(1, b"x" * {_BYTES})
os.write(2, b"%d" % done)
input()
"""

_NAMED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(15, b"\\xe6\\x97\\xa5\\xff\\rUid:\\t0\\t0\\t0")
os.setresuid(65534, 65534, 65534)
os.write(1, b"ready %d\\n" % os.getpid())
for line in sys.stdin:
    os.write(1, b"ok\\n")
"""


def _unread(target: Target) -> int:
    """Bytes that wait in the pipe from a target."""
    fionread, waiting = 0x541B, ctypes.c_int()
    assert target.process.stdout is not None
    ctypes.CDLL(None).ioctl(target.process.stdout.fileno(), fionread, ctypes.byref(waiting))
    return waiting.value


def test_a_blocked_write_is_never_shortened() -> None:
    """The only thread waits for a full pipe: it is not borrowed, and writes everything."""
    with Stage() as stage:
        target = stage.start(sys.executable, "-c", _WRITER, verify="")
        assert wait_until(lambda: _unread(target) + 4096 > _PIPE_PAGES_FULL, 10)

        for _ in range(3):
            with pytest.raises(TargetBusy):
                stage.engine.attach(target.pid)

        assert target.process.stdout is not None
        left = _BYTES - len(target._buffer)
        while left and select.select([target.process.stdout], [], [], 10)[0]:
            left -= len(os.read(target.process.stdout.fileno(), 65536))
        assert 0 == left
        assert wait_until(lambda: target.errors() == str(_BYTES), 10)
        # In a call that starts again exactly, it is served like any other.
        stage.attach(target, "when asked")
        assert stage.page_out(target).pages_moved > 100


def test_a_name_of_any_bytes_keeps_nobody_out_and_makes_nobody_root() -> None:
    """A process chooses its name; whose it is and whether it can be served it does not."""
    with Stage() as stage:
        target = stage.start(sys.executable, "-c", _NAMED, verify="ping")

        assert 65534 == processes.effective_uid(target.pid)
        stage.attach(target, "when asked")
        assert stage.page_out(target).pages_moved > 100
        target.ok("ping")

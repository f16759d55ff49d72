"""What a process gives up when it serves others, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

_DUMPABLE = """
import ctypes, sys
from pathlib import Path
from agentzip import model
from agentzip.daemon import EmbeddedDaemon
from agentzip.testing import FakeEngine
prctl, PR_GET_DUMPABLE = ctypes.CDLL(None).prctl, 3
before = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
settings = model.Settings(run_dir=Path(sys.argv[1]))
with EmbeddedDaemon(settings, engine_factory=lambda _: FakeEngine([])):
    inside = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
print(before, inside)
"""

_TOO_LATE = """
import threading
from agentzip.daemon import confine
from agentzip.errors import InternalError
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    confine()
except InternalError as error:
    print(error)
"""

_CONFINED = """
import os
from agentzip.daemon import confine
confine()
confine()
print(oct(os.umask(0)))
"""


def _said(program: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_an_engine_in_a_command_is_kept_out_of_core_dumps(tmp_path: Path) -> None:
    """`run`, `attach` and `demo` hold pages as a daemon does."""
    assert "1 0" == _said(_DUMPABLE, str(tmp_path))


def test_rights_are_not_dropped_for_one_thread_of_several() -> None:
    """The others would keep them, and nobody would notice."""
    assert _said(_TOO_LATE).endswith("threads: 2")


def test_what_is_dropped_already_may_be_dropped_again() -> None:
    """Also by who has no right to drop any, and new files are for us alone."""
    assert "0o77" == _said(_CONFINED)

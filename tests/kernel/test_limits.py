"""
Limits that are too low: a warning where it is safe to go on, a refusal with the cause where not.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(60)

_HOST = """
import resource, sys
from agentzip import model, pager
from agentzip.errors import AgentZipError
if sys.argv[2] != "-":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
engine = pager.open_engine(model.Settings(run_dir=__import__("pathlib").Path(sys.argv[1])))
attached = []
for pid in map(int, sys.argv[3:]):
    try:
        report = engine.attach(pid)
    except AgentZipError as error:
        print("refused", type(error).__name__, error)
        continue
    attached.append(pid)
    engine.page_out(pid)
    for warning in report.warnings:
        print("warning", warning)
for pid in attached:
    assert engine.detach(pid).complete
engine.close()
print("closed", len(attached))
"""


def _run(stage: Stage, descriptors: str, pids: list[int], *before: str) -> str:
    command = [*before, sys.executable, "-c", _HOST, str(stage.run_dir), descriptors]
    done = subprocess.run(
        [*command, *map(str, pids)], capture_output=True, text=True, timeout=50, check=False
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


def test_too_few_descriptors_are_a_refusal_with_its_cause() -> None:
    """What fits is attached, with a warning; the rest is refused; nobody is harmed."""
    with Stage() as stage:
        targets = [stage.memory(1, seed) for seed in range(1, 13)]
        said = _run(stage, "40", [target.pid for target in targets])

        assert "refused NotPermitted" in said
        assert "RLIMIT_NOFILE" in said
        assert "warning" in said
        for target in targets:
            target.verify()


def test_memory_that_cannot_be_locked_is_a_warning() -> None:
    """Without CAP_IPC_LOCK and with a low limit the pool may be swapped; that is said, no more."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed")
    with Stage() as stage:
        target = stage.memory(1)
        drop = [setpriv, "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]
        said = _run(stage, "-", [target.pid], *drop)

        assert "may be swapped" in said
        assert "closed 1" in said
        target.verify()


def test_the_limits_of_this_machine_are_enough() -> None:
    """As root on this host there is nothing to warn of."""
    if os.geteuid() != 0 or not Path("/dev/userfaultfd").exists():
        pytest.skip("needs root and /dev/userfaultfd")
    with Stage() as stage:
        target = stage.memory(1)
        said = _run(stage, "-", [target.pid])

        assert "warning" not in said

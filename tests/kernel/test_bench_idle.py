"""The measurement of an idle host, small: it ends, and leaves nothing behind."""

import os
from pathlib import Path

import pytest

from agentzip.bench.idle import IdlePlan, run_idle
from agentzip.errors import Unsupported
from agentzip.host.cgroups import hierarchies

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(110),
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made by root only"),
]


def test_a_few_idle_sandboxes_are_measured() -> None:
    """All were attached and quiet; what two processes take in a second is less than two cores."""
    try:
        result = run_idle(IdlePlan(sandboxes=3, seconds=1.0))
    except Unsupported as missing:
        pytest.skip(str(missing))

    assert 0 <= result.share_of_core < 2
    assert result.elapsed_s >= 1.0
    ours = f"agentzip-test-agent-sandbox-idle-{os.getpid()}"
    assert not any((Path(tree.mount) / ours).exists() for tree in hierarchies())

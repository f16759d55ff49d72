"""What the engine tells of its spaces, once a second, for hundreds of them."""

import pytest

from agentzip.selftest.stage import Stage

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(60)]


def test_a_space_that_has_not_changed_is_told_by_the_same_object() -> None:
    """So who looks once a second sees at once which ones have."""
    with Stage() as stage:
        quiet, moved = stage.memory(1, 1), stage.memory(1, 2)
        for target in (quiet, moved):
            stage.attach(target, "never")
        before = {space.pid: space for space in stage.engine.spaces()}
        stage.engine.page_out(moved.pid)
        after = {space.pid: space for space in stage.engine.spaces()}

        assert before[quiet.pid] is after[quiet.pid]
        assert before[moved.pid] is not after[moved.pid]
        assert after[moved.pid].pages_out > 0
        assert after == {space.pid: space for space in stage.engine.spaces()}

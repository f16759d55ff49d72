"""
The pool's background work on real processes: what waits long gets small, and comes back right.
"""

import pytest

from agentzip.policy import tiers
from agentzip.selftest.exact_languages import start_heap
from agentzip.selftest.stage import Stage
from agentzip.upkeep import Upkeep

pytestmark = pytest.mark.timeout(110)

_HOURS = 3600.0


class _Clock:
    """Waits of hours without waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_targets_of_one_image_become_cold_one_after_the_other() -> None:
    """The second refers to the first; both are right, and nothing is left of their dictionaries."""
    with Stage() as stage:
        engine = stage.open(algorithm="zstd")
        clock = _Clock()
        rules = tiers.Rules(budget_s=2.0, frozen_after_s=1e9)
        upkeep = Upkeep(
            engine, tiers.Background(rules=rules), lambda _pid: ("domain", "image"), clock
        )
        targets = [start_heap(stage, seed) for seed in (1, 2)]
        for target in targets:
            stage.attach(target, "always")
            upkeep.before_page_out(target.pid)
            stage.page_out(target)
        upkeep.step()
        warm = engine.stats().pool_payload_bytes
        clock.now = 5 * _HOURS
        for _ in range(40):
            moves = [action for action in upkeep.step() if isinstance(action, tiers.Move)]
            if not moves:
                break

        codecs = [{row.codec for row in engine.census(target.pid)} for target in targets]
        assert all("cold" in found for found in codecs), codecs
        assert "delta" in codecs[1]
        # A quarter of these heaps is noise, which stays as it is.
        assert engine.stats().pool_payload_bytes < 0.97 * warm
        for target in targets:
            target.verify()
        for target in targets:
            engine.detach(target.pid)
            stage.forget(target)
        upkeep.step()
        clock.now = 6 * _HOURS
        upkeep.step()

        assert [info.name for info in engine.dictionaries() if info.uses] == []


def test_a_full_pool_sends_the_longest_idle_pages_to_the_disk() -> None:
    """Above the threshold, and only as much as brings it below."""
    with Stage() as stage:
        engine = stage.open(
            algorithm="zstd",
            pool_bytes_max=14 << 20,
            disk_path=stage.folder / "swap",
            disk_bytes_max=64 << 20,
        )
        clock = _Clock()
        upkeep = Upkeep(engine, tiers.Background(), lambda _pid: ("domain", "image"), clock)
        target = start_heap(stage)
        stage.attach(target, "always")
        stage.page_out(target)
        upkeep.step()
        full = engine.stats()
        assert full.pool_bytes > 0.8 * full.pool_bytes_max
        clock.now = 60.0
        actions = upkeep.step()
        after = engine.stats()

        assert any(isinstance(action, tiers.Spill) for action in actions)
        assert after.disk_bytes > 0
        assert after.pool_payload_bytes < 0.85 * full.pool_bytes_max
        assert after.pool_payload_bytes > 0.6 * full.pool_bytes_max
        target.verify()
        stage.settle()

"""
How often the program is stopped: once per attach and once per page out, however many pages move.
"""

import pytest

from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(60)

_PAGE_OUTS = 10


def test_a_page_out_borrows_one_thread_once() -> None:
    """Many steps of a page out cost one stop, and bringing pages back costs none."""
    with Stage() as stage:
        engine = stage.open(algorithm="lz4", chunk_pages=64)
        target = stage.memory(8)
        stage.attach(target)
        chunks = 0
        before = engine.stats().stop.count
        for _ in range(_PAGE_OUTS):
            chunks += stage.page_out(target).chunks
            target.verify()

        assert chunks > 10 * _PAGE_OUTS
        assert _PAGE_OUTS == engine.stats().stop.count - before

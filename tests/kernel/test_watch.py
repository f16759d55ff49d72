"""
Memory that somebody else watches is left alone, whoever that is.

Pages moved out of a mapping under another's userfaultfd would be asked of that one, and read as
zeros as soon as it is closed.  The other is a second engine here; in life it is the program itself,
or a descriptor of a former attach that a dying keeper still holds.
"""

import threading

import pytest

from agentzip import model
from agentzip.errors import AgentZipError
from agentzip.pager import open_engine
from agentzip.selftest.stage import Stage

pytestmark = pytest.mark.timeout(90)


def test_pages_under_another_watch_do_not_move() -> None:
    """Of what the first engine watches the second moves nothing; every page stays right."""
    with Stage() as stage:
        first = stage.open()
        target = stage.memory(8)
        stage.attach(target)
        stage.page_out(target)
        first.page_in(target.pid)
        second = open_engine(model.Settings(run_dir=stage.folder / "second"))
        try:
            second.attach(target.pid)
            moved = second.page_out(target.pid).pages_moved
            target.verify()
            assert second.detach(target.pid).complete
        finally:
            second.close()

        assert moved < 64, "only what the first engine does not watch may leave"
        target.verify()
        stage.settle()


def test_detach_and_attach_beside_all_that_looks_at_spaces() -> None:
    """Compactions and lists of spaces hold a space for a while after its detach."""
    with Stage() as stage:
        engine = stage.open(chunk_pages=256)
        targets = [stage.memory(8, seed) for seed in (1, 2)]
        over = threading.Event()
        errors: list[str] = []

        def look() -> None:
            while not over.is_set():
                engine.compact(20_000)
                engine.spaces()

        looking = [threading.Thread(target=look) for _ in range(2)]
        for thread in looking:
            thread.start()
        try:
            for _ in range(25):
                for target in targets:
                    engine.attach(target.pid)
                    engine.page_out(target.pid)
                    engine.detach(target.pid)
                    target.verify()
        except AgentZipError as error:
            errors.append(repr(error))
        finally:
            over.set()
            for thread in looking:
                thread.join()

        assert errors == []
        assert engine.stats().pages_lost == 0

"""
Figures of real targets at `/metrics`, and that asking for them holds up no fault.
"""

import threading
from contextlib import closing

import pytest

from agentzip.metrics import MetricsServer
from agentzip.selftest.conditions import wait_until
from agentzip.selftest.stage import Stage
from metrics_scraping import get, samples, value
from sandbox_values import FakeFleet

pytestmark = pytest.mark.timeout(110)

_ROUNDS = 6


def test_what_is_out_is_what_is_scraped() -> None:
    """Classes add up to the pages that left; the gain is what left less what holds it."""
    with Stage() as stage:
        engine = stage.open()
        target = stage.memory(32)
        stage.attach(target)
        report = stage.page_out(target)
        fleet = FakeFleet()
        with closing(MetricsServer(engine, fleet, "127.0.0.1:0")) as server:
            server.start()
            wait_until(lambda: "agentzip_survey_timestamp_seconds" in get(server.port), 20)
            text = get(server.port)
            target.verify()
            wait_until(lambda: value(get(server.port), "agentzip_faults_total") > 0, 20)

        out = sum(
            found
            for (name, _), found in samples(text).items()
            if name == "agentzip_class_out_bytes"
        )
        gain = value(text, "agentzip_host_gain_bytes")
        print(f"out {out}, gain {gain}, ratio {value(text, 'agentzip_memory_pss_ratio'):.2f}")
        assert report.pages_stored * 4096 == out
        held = ("agentzip_pool_bytes", "agentzip_table_bytes", "agentzip_overhead_bytes")
        assert out - sum(value(text, name) for name in held) == gain
        assert value(text, "agentzip_pool_bytes") > 0
        assert value(text, "agentzip_stop_seconds_count") > 0
        stage.settle()


def test_asking_without_end_loses_no_fault() -> None:
    """Every page comes right while scrapes and surveys run in a loop; the figures are printed."""
    with Stage() as stage:
        engine = stage.open()
        target = stage.memory(32)
        stage.attach(target)
        ticks = iter(range(10**9))
        server = MetricsServer(engine, FakeFleet(), "127.0.0.1:0", clock=lambda: float(next(ticks)))
        server.start()
        over = threading.Event()
        scrapes: list[int] = []

        def ask() -> None:
            while not over.is_set():
                server._surveyor.look()
                scrapes.append(len(get(server.port)))

        asking = threading.Thread(target=ask)
        figures = []
        for busy in (False, True):
            if busy:
                asking.start()
            engine.reset_stats()
            for _ in range(_ROUNDS):
                stage.page_out(target)
                target.verify()
            service = engine.stats().fault_service
            figures.append((service.count, service.p50_us, service.p99_us, service.max_us))
        over.set()
        asking.join()
        server.close()

        print(f"faults alone {figures[0]}; while asked {len(scrapes)} times {figures[1]} (us)")
        assert 0 < min(scrapes)
        assert figures[0][0] > 0
        assert figures[1][0] > 0
        assert 0 == engine.stats().pages_lost
        stage.settle()

"""
A metrics server over made-up sandboxes, and what Prometheus' own parser reads from it.

Holds no rule itself: those are in tests/unit/metrics.
"""

import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from agentzip import model
from agentzip.errors import InternalError
from agentzip.metrics import MetricsServer
from agentzip.testing import FakeEngine
from sandbox_values import FakeFleet, a_sandbox

__all__ = ["SCOPE", "BusyEngine", "full_fleet", "get", "samples", "serving", "value"]

SCOPE = "agent-sandbox-*.slice"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class BusyEngine(FakeEngine):
    """An engine with figures that differ from each other."""

    broken = False

    def stats(self) -> model.EngineStats:
        """Known figures."""
        if self.broken:
            raise InternalError("the engine does not answer")
        return replace(
            super().stats(),
            faults=70,
            faults_zero=30,
            events_fork=2,
            pages_lost=1,
            fault_service=model.Latency(40, 20.0, 90.0, 400.0, 25.0),
        )


def full_fleet() -> FakeFleet:
    """Sandboxes in which every figure is known."""
    return FakeFleet([a_sandbox("a"), a_sandbox("b", phase="running", left_alone="ratio 1.2")])


@contextmanager
def serving(
    fleet: FakeFleet, engine: FakeEngine | None = None, sandboxes_max: int = 100
) -> Iterator[tuple[Callable[[], str], MetricsServer]]:
    """A server on a free port, and a scrape of it that is never answered from memory."""
    ticks = iter(range(10**6))
    server = MetricsServer(
        engine or FakeEngine(),
        fleet,
        "127.0.0.1:0",
        sandboxes_max=sandboxes_max,
        clock=lambda: float(next(ticks)),
    )
    server.start()
    try:
        yield lambda: get(server.port), server
    finally:
        server.close()


def get(port: int, path: str = "/metrics") -> str:
    """One request."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def samples(text: str) -> Samples:
    """Every sample by name and labels, as Prometheus' own parser reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    """One sample."""
    return samples(text)[name, frozenset(labels.items())]

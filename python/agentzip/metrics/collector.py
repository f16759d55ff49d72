"""
What engine, fleet and survey say, put into the families of `agentzip.metrics.families`.

Sandboxes come and go, and a sum over those that live would fall when one ends.  So what only grows
is added up here: the growth of each sandbox since the last scrape is added to its scope's total.
What a sandbox did between the last scrape and its end is not in it.

Only the largest sandboxes have series of their own, by what they take with everything home, so
that paging one out does not move it on the list.  All others are `other`: sizes only, because the
sum of counters over a changing set is no counter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType
from typing import Protocol

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agentzip import model
from agentzip.errors import AgentZipError
from agentzip.host import memory
from agentzip.metrics.families import FAMILIES, Family
from agentzip.metrics.survey import Survey
from agentzip.pager import Pager
from agentzip.sandboxes import PHASES, SandboxStatus, ScopeStatus
from agentzip.totals import Totals, add_up, by_memory

__all__ = ["HostCollector", "Sandboxes"]

_FAMILIES = {family.name: family for family in FAMILIES}

_ENGINE_GAUGES = {
    "agentzip_pool_bytes": "pool_bytes",
    "agentzip_pool_limit_bytes": "pool_bytes_max",
    "agentzip_pool_payload_bytes": "pool_payload_bytes",
    "agentzip_pool_waste_bytes": "pool_waste_bytes",
    "agentzip_pool_slots": "pool_slots",
    "agentzip_table_bytes": "table_bytes",
    "agentzip_index_bytes": "index_bytes",
    "agentzip_dictionary_bytes": "dictionary_bytes",
    "agentzip_disk_bytes": "disk_bytes",
    "agentzip_disk_limit_bytes": "disk_bytes_max",
    "agentzip_faults_total": "faults",
    "agentzip_zero_faults_total": "faults_zero",
    "agentzip_disk_faults_total": "faults_disk",
    "agentzip_present_faults_total": "faults_already_present",
    "agentzip_retried_faults_total": "faults_retried",
    "agentzip_fault_panics_total": "fault_panics",
    "agentzip_pages_lost_total": "pages_lost",
    "agentzip_keeper_restarts_total": "keeper_restarts",
}
"""Metrics that are one figure of the engine."""

_ENGINE_LATENCIES = {
    "agentzip_fault_service_seconds": "fault_service",
    "agentzip_decode_seconds": "decode",
    "agentzip_encode_seconds": "encode",
    "agentzip_stop_seconds": "stop",
    "agentzip_hold_seconds": "hold",
}

_SCOPE_GAUGES: dict[str, Callable[[Totals], float | None]] = {
    "agentzip_pinned_sandboxes": lambda totals: totals.pinned,
    "agentzip_left_alone_sandboxes": lambda totals: totals.left_alone,
    "agentzip_resident_bytes": lambda totals: totals.resident_bytes,
    "agentzip_out_bytes": lambda totals: totals.orig_mem,
    "agentzip_stored_bytes": lambda totals: totals.stored_mem,
    "agentzip_prefetch_hit_ratio": lambda totals: totals.prefetch_hit_rate,
    "agentzip_prefetch_waste_ratio": lambda totals: totals.prefetch_waste,
    "agentzip_worst_wake_seconds": lambda totals: _seconds(totals.wake_p99_ms),
}

_SANDBOX_FIGURES: dict[str, Callable[[SandboxStatus], float | None]] = {
    "agentzip_sandbox_resident_bytes": lambda one: one.rss_bytes,
    "agentzip_sandbox_out_bytes": lambda one: one.bytes_logical,
    "agentzip_sandbox_stored_bytes": lambda one: one.bytes_pool,
    "agentzip_sandbox_table_bytes": lambda one: one.bytes_table,
    "agentzip_sandbox_faults_total": lambda one: one.faults,
    "agentzip_sandbox_paging_cpu_seconds_total": lambda one: one.cpu_s,
    "agentzip_sandbox_prefetch_hit_ratio": lambda one: one.prefetch_hit_rate,
    "agentzip_sandbox_prefetch_waste_ratio": lambda one: one.prefetch_waste,
}

_SIZES = (
    "agentzip_sandbox_resident_bytes",
    "agentzip_sandbox_out_bytes",
    "agentzip_sandbox_stored_bytes",
    "agentzip_sandbox_table_bytes",
)
"""What the sandboxes without series of their own are summed up in."""

_GROWING: dict[str, Callable[[SandboxStatus], float]] = {
    "agentzip_wakes_total": lambda one: one.wakes,
    "agentzip_paging_cpu_seconds_total": lambda one: one.cpu_s,
}
"""What is added up over sandboxes that end."""

_OTHER = {"sandbox": "other", "scope": ""}


class Sandboxes(Protocol):
    """What of a fleet is exported (`agentzip.sandboxes.Fleet` has it)."""

    def sandboxes(self) -> list[SandboxStatus]:
        """Every sandbox, as the last tick saw it."""

    def scopes(self) -> list[ScopeStatus]:
        """Every scope."""


@dataclass(slots=True)
class _Growth:
    """One figure that only grows, by scope."""

    seen: dict[str, float]
    """Sandbox to its figure at the last scrape."""
    totals: dict[str, float]

    def add(self, sandboxes: Iterable[SandboxStatus], of: Callable[[SandboxStatus], float]) -> None:
        """Add what each sandbox has grown by; one that fell began anew under an old name."""
        now = {}
        for one in sandboxes:
            value, before = of(one), self.seen.get(one.name, 0.0)
            grown = value - before if value >= before else value
            scope = _scope_label(one.scope)
            self.totals[scope] = self.totals.get(scope, 0.0) + grown
            now[one.name] = value
        self.seen = now


class HostCollector(Collector):
    """
    Everything of one host; not safe to be asked from two threads at once.

    Args:
        engine: Whose figures are exported.
        fleet: Whose sandboxes are exported.
        survey: The last survey, if there was one.
        sandboxes_max: How many sandboxes have series of their own.
    """

    def __init__(
        self,
        engine: Pager,
        fleet: Sandboxes,
        survey: Callable[[], Survey | None],
        sandboxes_max: int,
    ) -> None:
        self._engine = engine
        self._fleet = fleet
        self._survey = survey
        self._sandboxes_max = sandboxes_max
        self._growth = {name: _Growth({}, {}) for name in _GROWING}

    def collect(self) -> Iterator[Metric]:
        """Every family, in their order; those without a figure are left out."""
        found = _Samples()
        found.add("agentzip_build_info", 1, version=metadata.version("agentzip"))
        found.add("agentzip_host_memory_bytes", memory.memory_total())
        found.add("agentzip_host_memory_available_bytes", memory.memory_available())
        try:
            self._of_engine(found, self._engine.stats())
        except AgentZipError:
            found.add("agentzip_engine_up", 0)
        sandboxes = self._fleet.sandboxes()
        self._of_scopes(found, sandboxes)
        self._of_sandboxes(found, by_memory(sandboxes))
        survey = self._survey()
        if survey is not None:
            _of_survey(found, survey)
        yield from found.metrics()

    def _of_engine(self, found: "_Samples", stats: model.EngineStats) -> None:
        found.add("agentzip_engine_up", 1)
        for name, figure in _ENGINE_GAUGES.items():
            found.add(name, getattr(stats, figure))
        for event in ("fork", "remap", "remove", "unmap"):
            count = getattr(stats, f"events_{event}")
            found.add("agentzip_address_space_events_total", count, event=event)
        for name, figure in _ENGINE_LATENCIES.items():
            latency: model.Latency = getattr(stats, figure)
            quantiles = {"0.5": latency.p50_us, "0.99": latency.p99_us, "1": latency.max_us}
            found.add_summary(
                name,
                {quantile: micros / 1e6 for quantile, micros in quantiles.items()},
                latency.count,
                total=latency.count * latency.mean_us / 1e6,
            )

    def _of_scopes(self, found: "_Samples", sandboxes: list[SandboxStatus]) -> None:
        scopes: dict[str, list[SandboxStatus]] = {}
        for one in sandboxes:
            scopes.setdefault(_scope_label(one.scope), []).append(one)
        for scope in self._fleet.scopes():
            scopes.setdefault(_scope_label(scope.pattern), [])
        for label, members in sorted(scopes.items()):
            totals = add_up(members)
            for phase in PHASES:
                count = totals.phases.get(phase, 0)
                found.add("agentzip_sandboxes", count, scope=label, phase=phase)
            for name, figure in _SCOPE_GAUGES.items():
                found.add(name, figure(totals), scope=label)
        for name, growth in self._growth.items():
            growth.add(sandboxes, _GROWING[name])
            for label, total in sorted(growth.totals.items()):
                found.add(name, total, scope=label)

    def _of_sandboxes(self, found: "_Samples", sandboxes: list[SandboxStatus]) -> None:
        for one in sandboxes[: self._sandboxes_max]:
            labels = {"sandbox": one.name, "scope": _scope_label(one.scope)}
            for name, figure in _SANDBOX_FIGURES.items():
                found.add(name, figure(one), **labels)
            quantiles = {"0.5": _seconds(one.wake_p50_ms), "0.99": _seconds(one.wake_p99_ms)}
            found.add_summary("agentzip_sandbox_wake_seconds", quantiles, one.wakes, labels)
        others = sandboxes[self._sandboxes_max :]
        if others:
            for name in _SIZES:
                sizes = [_SANDBOX_FIGURES[name](one) or 0 for one in others]
                found.add(name, sum(sizes), **_OTHER)


def _of_survey(found: "_Samples", survey: Survey) -> None:
    for (class_name, codec), (out, stored) in sorted(survey.classes.items()):
        labels = {"class": class_name, "codec": codec}
        found.add("agentzip_class_out_bytes", out, **labels)
        found.add("agentzip_class_stored_bytes", stored, **labels)
    found.add("agentzip_overhead_bytes", survey.overhead_bytes)
    if survey.gained is not None:
        found.add("agentzip_memory_ratio", survey.gained.ratio)
        found.add("agentzip_memory_pss_ratio", survey.gained.ratio_pss)
        found.add("agentzip_host_gain_bytes", survey.gained.host_gain_bytes)
    found.add("agentzip_survey_timestamp_seconds", survey.at)


def _scope_label(pattern: str) -> str:
    """Pattern of a scope; those of one process or one command are told together."""
    kind, separator, _ = pattern.partition(":")
    return kind if separator and kind in {"pid", "run"} else pattern


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


class _Samples:
    """Samples by family, as the library wants them."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, name: str, value: float | None, **labels: str) -> None:
        """Add one sample; None is no sample."""
        if value is not None:
            self._of(_FAMILIES[name]).add_sample(name, labels, value)

    def add_summary(
        self,
        name: str,
        quantiles: Mapping[str, float | None],
        count: int,
        labels: Mapping[str, str] = MappingProxyType({}),
        total: float | None = None,
    ) -> None:
        """Add count, sum if it is known, and quantiles; without any value there are none."""
        metric = self._of(_FAMILIES[name])
        metric.add_sample(f"{name}_count", dict(labels), count)
        if total is not None:
            metric.add_sample(f"{name}_sum", dict(labels), total)
        for quantile, value in quantiles.items():
            if count and value is not None:
                metric.add_sample(name, {**labels, "quantile": quantile}, value)

    def metrics(self) -> Iterator[Metric]:
        """Those with samples, in the order of the families."""
        for family in FAMILIES:
            if family.name in self._metrics:
                yield self._metrics[family.name]

    def _of(self, family: Family) -> Metric:
        metric = self._metrics.get(family.name)
        if metric is None:
            # The library puts the ending of a counter back itself.
            name = family.name.removesuffix("_total")
            metric = self._metrics[family.name] = Metric(name, family.meaning, family.kind)
        return metric

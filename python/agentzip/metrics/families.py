"""
Every metric that we export: its name, kind, meaning and labels.

Names follow the conventions of Prometheus: base units (bytes, seconds, ratios from 0 up), the unit
last, `_total` on what only grows.  No label holds a pid: each value of a label is a series that is
kept for weeks.  `sandbox` is bounded by the collector, the others by what exists:

    scope     pattern of a scope; all single processes are `pid`, all started by `run` are `run`
    sandbox   one of the largest; all others together are `other`, with an empty scope
    phase     one of `agentzip.sandboxes.PHASES`
    class     class of memory, as in `agentzip inspect`
    codec     encoding, as in `agentzip stats`

docs/observability.md lists them all, and a test compares.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["FAMILIES", "Family"]

Kind = Literal["counter", "gauge", "summary"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its series."""

    name: str
    """As it is scraped; a summary also has `NAME_count`, and `NAME_sum` where it is known."""
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


_SCOPE = ("scope",)
_SANDBOX = ("sandbox", "scope")
_CLASS = ("class", "codec")

_ENGINE = (
    Family("agentzip_build_info", "gauge", "Always 1; the version is a label.", ("version",)),
    Family("agentzip_engine_up", "gauge", "Whether the engine answered this scrape: 1 or 0."),
    Family("agentzip_host_memory_bytes", "gauge", "Memory of the host."),
    Family(
        "agentzip_host_memory_available_bytes",
        "gauge",
        "What new programs can take without swapping; MemAvailable and per-CPU free lists.",
    ),
    Family("agentzip_pool_bytes", "gauge", "Memory that the pool really takes."),
    Family("agentzip_pool_limit_bytes", "gauge", "Hard cap of the pool."),
    Family("agentzip_pool_payload_bytes", "gauge", "Encoded bytes in the pool."),
    Family("agentzip_pool_waste_bytes", "gauge", "Memory of the pool that holds no encoded byte."),
    Family("agentzip_pool_slots", "gauge", "Encoded pages in the pool; equal ones share a slot."),
    Family("agentzip_table_bytes", "gauge", "Memory of the page tables."),
    Family("agentzip_index_bytes", "gauge", "Memory of what finds slots, equal and similar pages."),
    Family("agentzip_dictionary_bytes", "gauge", "Memory of dictionaries and layouts."),
    Family("agentzip_disk_bytes", "gauge", "Bytes of the swap file that are taken."),
    Family("agentzip_disk_limit_bytes", "gauge", "Most bytes of the swap file; 0: there is none."),
    Family("agentzip_faults_total", "counter", "Page faults that were answered."),
    Family(
        "agentzip_zero_faults_total",
        "counter",
        "Faults on pages never touched before.",
    ),
    Family("agentzip_disk_faults_total", "counter", "Faults answered from the swap file."),
    Family(
        "agentzip_present_faults_total",
        "counter",
        "Faults on pages that were home already.",
    ),
    Family("agentzip_retried_faults_total", "counter", "Faults put aside and answered later."),
    Family("agentzip_fault_panics_total", "counter", "Panics of fault threads, survived: bugs."),
    Family("agentzip_pages_lost_total", "counter", "Pages that could not be produced: poisoned."),
    Family("agentzip_keeper_restarts_total", "counter", "Keepers that died and were replaced."),
    Family(
        "agentzip_address_space_events_total",
        "counter",
        "Changes that targets made to their address spaces: fork, remap, remove, unmap.",
        ("event",),
    ),
    Family(
        "agentzip_fault_service_seconds",
        "summary",
        "From reading a fault until its page was given; quantile 1 is the largest ever.",
    ),
    Family(
        "agentzip_decode_seconds",
        "summary",
        "Making a page from its blob in the pool for a fault; quantile 1 is the largest ever.",
    ),
    Family(
        "agentzip_encode_seconds",
        "summary",
        "Making a blob of a page that leaves; quantile 1 is the largest ever.",
    ),
    Family(
        "agentzip_stop_seconds",
        "summary",
        "How long one thread of a target was stopped; quantile 1 is the largest ever.",
    ),
    Family(
        "agentzip_hold_seconds",
        "summary",
        "How long faults had to wait for one step of a page out; quantile 1 is the largest ever.",
    ),
)

_SCOPES = (
    Family("agentzip_sandboxes", "gauge", "Sandboxes in a phase.", ("scope", "phase")),
    Family("agentzip_pinned_sandboxes", "gauge", "Sandboxes that somebody pinned.", _SCOPE),
    Family("agentzip_left_alone_sandboxes", "gauge", "Sandboxes that do not pay.", _SCOPE),
    Family("agentzip_resident_bytes", "gauge", "Resident memory (RSS) of sandboxes.", _SCOPE),
    Family("agentzip_out_bytes", "gauge", "Memory that is out, before encoding.", _SCOPE),
    Family("agentzip_stored_bytes", "gauge", "Memory that is out, as it is stored.", _SCOPE),
    Family("agentzip_wakes_total", "counter", "Wakes of sandboxes.", _SCOPE),
    Family(
        "agentzip_paging_cpu_seconds_total",
        "counter",
        "Processor time that paging sandboxes out and in has taken.",
        _SCOPE,
    ),
    Family(
        "agentzip_prefetch_hit_ratio",
        "gauge",
        "Share of the pages needed after a wake that were home before, mean over all wakes.",
        _SCOPE,
    ),
    Family(
        "agentzip_prefetch_waste_ratio",
        "gauge",
        "Share of the prefetched pages that were not needed, mean over all wakes.",
        _SCOPE,
    ),
    Family(
        "agentzip_worst_wake_seconds",
        "gauge",
        "Largest 99th percentile of wakes that any sandbox has.",
        _SCOPE,
    ),
)

_SANDBOXES = (
    Family("agentzip_sandbox_resident_bytes", "gauge", "Resident memory (RSS).", _SANDBOX),
    Family("agentzip_sandbox_out_bytes", "gauge", "Memory that is out, before encoding.", _SANDBOX),
    Family(
        "agentzip_sandbox_stored_bytes",
        "gauge",
        "Memory that is out, as it is stored.",
        _SANDBOX,
    ),
    Family("agentzip_sandbox_table_bytes", "gauge", "Memory of its page tables.", _SANDBOX),
    Family("agentzip_sandbox_faults_total", "counter", "Faults on pages that were out.", _SANDBOX),
    Family(
        "agentzip_sandbox_paging_cpu_seconds_total",
        "counter",
        "Processor time that paging it out and in has taken.",
        _SANDBOX,
    ),
    Family(
        "agentzip_sandbox_prefetch_hit_ratio",
        "gauge",
        "Share of the pages needed after a wake that were home before.",
        _SANDBOX,
    ),
    Family(
        "agentzip_sandbox_prefetch_waste_ratio",
        "gauge",
        "Share of the prefetched pages that were not needed.",
        _SANDBOX,
    ),
    Family(
        "agentzip_sandbox_wake_seconds",
        "summary",
        "From an announced wake, or its first fault, until the working set was home.",
        _SANDBOX,
    ),
)

_SURVEY = (
    Family("agentzip_class_out_bytes", "gauge", "Memory that is out, before encoding.", _CLASS),
    Family("agentzip_class_stored_bytes", "gauge", "Memory that is out, as it is stored.", _CLASS),
    Family("agentzip_overhead_bytes", "gauge", "Memory of daemon and keeper for themselves."),
    Family(
        "agentzip_memory_ratio",
        "gauge",
        "RSS without us by all memory taken with us: what stays, pool, tables, overhead.",
    ),
    Family("agentzip_memory_pss_ratio", "gauge", "PSS without us by all memory taken with us."),
    Family(
        "agentzip_host_gain_bytes", "gauge", "What the host gained: out, less all that holds it."
    ),
    Family(
        "agentzip_survey_timestamp_seconds",
        "gauge",
        "When classes and ratios were looked at.",
    ),
)

FAMILIES = (*_ENGINE, *_SCOPES, *_SANDBOXES, *_SURVEY)
"""In the order in which they are exported; of the daemon's process there are `process_...`."""

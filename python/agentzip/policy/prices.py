"""
What memory, processors and delay are worth now, all in byte-seconds of memory.

    gain = bytes saved x expected rest of the wait x price of memory
    cost = processor seconds x price of a processor second
         + seconds of delay x price of a second of delay

A byte-second of memory is worth nothing while the host has enough, up to one byte-second below the
start watermark, two from there on, and more as memory runs out or somebody stalls for it.  A
processor second costs the memory that the host has per core, times how busy the processors are, as
in `tiers`.  A second for which a sandbox is late costs a core's memory whatever the processors do:
somebody waits.
"""

from dataclasses import dataclass, field

__all__ = [
    "PAGE_BYTES",
    "Costs",
    "Host",
    "Pages",
    "Prices",
    "Watermarks",
    "Worth",
    "reclaims",
    "weigh",
]

PAGE_BYTES = 4096

_IDLE_PRICE = 0.02
"""Price of a processor second that nobody else wants, as in `tiers`."""

_LOWEST_PRICE = 0.1
"""Price of memory just above the stop watermark, where only the best page outs should pay."""

_RECLAIM_PRICE = 2.0
"""Price of memory from the start watermark on, and until it is won back: from here on memory is
what the host is short of, not processors."""

_FULL_PRICE = 16.0
"""Price of memory when none is available: the next step is that somebody is killed for it."""

_PRESSURE_WEIGHT = 10.0
"""Somebody stalled for memory a tenth of the time doubles its price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host and the pool, as one tick saw them."""

    memory_bytes: int
    available_bytes: int
    pressure: float
    """PSI memory, `some avg10`, 0 to 1; 0 where the kernel does not tell."""
    cores: int
    cpu_idle_share: float
    """Of all processors, over the last tick; 0 to 1."""
    pool_bytes: int
    pool_bytes_max: int

    @property
    def used_share(self) -> float:
        """Memory that is not available, as a share of all, 0 to 1."""
        return min(max(1.0 - self.available_bytes / self.memory_bytes, 0.0), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """`policy.watermarks`, as shares from 0 to 1."""

    start: float = 0.85
    stop: float = 0.70
    between_share: float = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What moving a page takes, in seconds of one processor; measured, see the design's studies."""

    encode_s: float = 18e-6
    """zstd 3 with a dictionary."""
    move_s: float = 0.6e-6
    """Out of the address space and out of staging, which is all that a clean page needs."""
    restore_batched_s: float = 8e-6
    """Home in batches of 64 pages and more, decoding included."""
    restore_fault_s: float = 15e-6
    """Home by a fault, as the sandbox sees it."""
    page_out_s: float = 1.5e-3
    """Once per page out: the borrowed thread, the maps, the scan."""
    return_chance_warm: float = 0.10
    """Share of the pages outside the working set that the next wake touches all the same ..."""
    return_chance_cold: float = 0.03
    """... and of a process that touched nothing for longer than the warm threshold."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What things are worth in one tick."""

    memory: float
    """Byte-seconds per byte-second: how much more or less than at the start watermark."""
    processor: float
    """Byte-seconds per processor second."""
    delay: float
    """Byte-seconds per second for which a sandbox is late."""

    @classmethod
    def of(cls, host: Host, watermarks: Watermarks, *, reclaiming: bool) -> "Prices":
        """Prices of this moment."""
        core_bytes = host.memory_bytes / host.cores
        busy = 1.0 - min(max(host.cpu_idle_share, 0.0), 1.0)
        return cls(
            memory=_memory_price(host, watermarks, reclaiming=reclaiming),
            processor=core_bytes * max(busy, _IDLE_PRICE),
            delay=core_bytes,
        )


@dataclass(frozen=True, slots=True)
class Worth:
    """One page out weighed, per page; gain and costs in byte-seconds."""

    saved_bytes: float
    """Net of what the pool takes for it."""
    pool_bytes: float
    """What the pool takes; nothing for the share of clean pages, whose copy is there already."""
    gain: float
    encode_cost: float
    """Processor time now."""
    restore_cost: float
    """Processor time at the wake, by the chance of the return."""
    delay_cost: float
    """What the sandbox waits at the wake, by the chance of the return."""

    @property
    def cost(self) -> float:
        """All costs."""
        return self.encode_cost + self.restore_cost + self.delay_cost

    @property
    def pays(self) -> bool:
        """Whether the gain is larger."""
        return self.gain > self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """A group of pages of one kind."""

    ratio: float
    clean_share: float
    rest_s: float
    """How long they are expected to stay out."""
    return_chance: float
    restore_s: float
    """What one page takes to come home ..."""
    delay_s: float
    """... and of it, what the sandbox waits for."""
    costs: Costs = field(default_factory=Costs)


def reclaims(host: Host, watermarks: Watermarks, *, before: bool) -> bool:
    """
    Whether memory is being won back: from the start watermark on, until below the stop watermark.

    Args:
        host: This tick.
        watermarks: What the operator set.
        before: The answer of the tick before.
    """
    if host.used_share >= watermarks.start:
        return True
    return before and host.used_share >= watermarks.stop


def weigh(pages: Pages, prices: Prices) -> Worth:
    """Weigh a page out of pages of one kind."""
    encoded = 1.0 - min(max(pages.clean_share, 0.0), 1.0)
    pool_bytes = encoded * PAGE_BYTES / max(pages.ratio, 1.0)
    saved_bytes = PAGE_BYTES - pool_bytes
    return Worth(
        saved_bytes=saved_bytes,
        pool_bytes=pool_bytes,
        gain=saved_bytes * max(pages.rest_s, 0.0) * prices.memory,
        encode_cost=(pages.costs.move_s + encoded * pages.costs.encode_s) * prices.processor,
        restore_cost=pages.return_chance * pages.restore_s * prices.processor,
        delay_cost=pages.return_chance * pages.delay_s * prices.delay,
    )


def _memory_price(host: Host, watermarks: Watermarks, *, reclaiming: bool) -> float:
    used = host.used_share
    if used >= watermarks.start:
        above = (used - watermarks.start) / max(1.0 - watermarks.start, 1e-9)
        price = _RECLAIM_PRICE + (_FULL_PRICE - _RECLAIM_PRICE) * min(above, 1.0)
    elif reclaiming:
        price = _RECLAIM_PRICE
    elif used >= watermarks.stop:
        between = (used - watermarks.stop) / (watermarks.start - watermarks.stop)
        price = _LOWEST_PRICE + (1.0 - _LOWEST_PRICE) * between
    else:
        return 0.0
    return price * (1.0 + _PRESSURE_WEIGHT * min(max(host.pressure, 0.0), 1.0))

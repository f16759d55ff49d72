"""
What was measured, and what it means: distributions, ratios to a floor, aims.

Everything is kept as durations in microseconds (lower is better), rates included: a rate is 4096
bytes divided by the time of one page.  That way one rule holds for every figure.
Samples stay grouped by round.  The ratio of two ways is the median over the rounds of the ratio of
their medians in one round: whatever slowed the machine down for a second slowed both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from agentzip.accounting import percentile

__all__ = ["AIMS", "FLOOR", "MEASURES", "Aim", "Figure", "Ledger", "Measure", "Verdict", "judge"]

FLOOR = "floor"
"""Name of the way that every other one is divided by."""

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of figure."""

    key: str
    title: str
    floor: str
    """What the raw kernel primitive is."""
    per_page: bool = False
    """Whether the samples are microseconds per page, so that a rate can be told."""


MEASURES = (
    Measure("fault", "page fault, served from the same CPU", "bare poll loop"),
    Measure("fault_across", "page fault, served from another CPU", "bare poll loop"),
    Measure("fault_free", "page fault, all placed by the scheduler", "none"),
    Measure("stop", "stop of one thread, per page out", "bare ptrace stop"),
    Measure("hold", "faults held up, per chunk", "UFFDIO_MOVE of as many pages"),
    Measure("attach", "attach", "bare ptrace stop"),
    Measure("detach", "detach, memory at home", "bare ptrace stop"),
    Measure("detach_kept", "detach, memory at home, copies kept", "bare ptrace stop"),
    Measure("page_out", "page out, first time, per page", "UFFDIO_MOVE", per_page=True),
    Measure("page_out_again", "page out, clean, per page", "UFFDIO_MOVE", per_page=True),
    Measure("page_in", "page in, batched, per page", "UFFDIO_COPY of 64 pages", per_page=True),
    Measure("page_in_cpu", "the same in CPU time", "UFFDIO_COPY of 64 pages", per_page=True),
    Measure("fault_again", "touch after WILLNEED", "bare poll loop"),
)
"""Everything that is measured, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The distribution of one measure for one way."""

    measure: str
    way: str
    count: int
    p50_us: float
    p99_us: float
    mean_us: float
    ratio: float | None
    """To the floor; None where there is none."""

    @property
    def gigabytes_per_second(self) -> float:
        """The rate, for measures per page."""
        return _PAGE_BYTES / self.p50_us / 1000


@dataclass(slots=True)
class Ledger:
    """All samples, by measure and way, a list per round."""

    samples: dict[tuple[str, str], list[list[float]]] = field(default_factory=dict)

    def note(self, measure: str, way: str, microseconds: Sequence[float]) -> None:
        """Add the samples of one round."""
        if microseconds:
            self.samples.setdefault((measure, way), []).append(list(microseconds))

    def figure(self, measure: str, way: str) -> Figure | None:
        """The distribution over all rounds; None if nothing was measured."""
        rounds = self.samples.get((measure, way))
        if not rounds:
            return None
        values = [value for samples in rounds for value in samples]
        return Figure(
            measure,
            way,
            len(values),
            percentile(values, 50),
            percentile(values, 99),
            fmean(values),
            self.ratio(measure, way),
        )

    def ratio(self, measure: str, way: str, to: tuple[str, str] | None = None) -> float | None:
        """Median over the rounds of the ratio to the floor, or to another series."""
        ours = self.samples.get((measure, way), [])
        base = self.samples.get(to or (measure, FLOOR), [])
        pairs = list(zip(ours, base, strict=False))
        if not pairs:
            return None
        return median(median(above) / median(below) for above, below in pairs)

    def figures(self) -> list[Figure]:
        """Every distribution, measure by measure, the floor first."""
        found = []
        for measure in MEASURES:
            ways = [way for key, way in self.samples if key == measure.key]
            ways.sort(key=lambda way: way != FLOOR)
            found += [self.figure(measure.key, way) for way in ways]
        return [figure for figure in found if figure is not None]


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure should be."""

    title: str
    limit: float
    unit: str
    value: Callable[[Ledger], float | None]
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """An aim beside what was found."""

    title: str
    aim: str
    value: float | None
    unit: str
    met: bool | None
    """None: not measured in this run."""


def judge(ledger: Ledger) -> list[Verdict]:
    """Compare the figures with the aims."""
    verdicts = []
    for aim in AIMS:
        value = aim.value(ledger)
        met = None
        if value is not None:
            met = value >= aim.limit if aim.at_least else value <= aim.limit
        sign = ">=" if aim.at_least else "<="
        verdicts.append(Verdict(aim.title, f"{sign} {aim.limit:g}", value, aim.unit, met))
    return verdicts


def _ratio(measure: str, way: str) -> Callable[[Ledger], float | None]:
    return lambda ledger: ledger.ratio(measure, way)


def _milliseconds(measure: str, percent: float) -> Callable[[Ledger], float | None]:
    """Over all algorithms: what is stopped or attached is the same for each."""

    def value(ledger: Ledger) -> float | None:
        values = [
            sample
            for (key, way), rounds in ledger.samples.items()
            if key == measure and way != FLOOR
            for samples in rounds
            for sample in samples
        ]
        return percentile(values, percent) / 1000 if values else None

    return value


def _rate(way: str) -> Callable[[Ledger], float | None]:
    def value(ledger: Ledger) -> float | None:
        figure = ledger.figure("page_in_cpu", way)
        return figure.gigabytes_per_second if figure else None

    return value


def _speedup(way: str) -> Callable[[Ledger], float | None]:
    return lambda ledger: ledger.ratio("page_out", way, ("page_out_again", way))


AIMS = (
    Aim("LZ4 fault to the raw floor, same CPU", 1.15, "x", _ratio("fault", "lz4")),
    Aim("LZ4 fault to the raw floor, other CPU", 1.15, "x", _ratio("fault_across", "lz4")),
    Aim("stop, median", 1.0, "ms", _milliseconds("stop", 50)),
    Aim("stop, P99", 5.0, "ms", _milliseconds("stop", 99)),
    Aim("hold per chunk, median", 1.0, "ms", _milliseconds("hold", 50)),
    Aim("hold per chunk, P99", 5.0, "ms", _milliseconds("hold", 99)),
    Aim("attach, median", 5.0, "ms", _milliseconds("attach", 50)),
    Aim("batched page in, LZ4, per core", 1.0, "GB/s", _rate("lz4"), at_least=True),
    Aim("clean page out, faster by, LZ4", 10.0, "x", _speedup("lz4"), at_least=True),
    Aim("clean page out, faster by, zstd-3", 10.0, "x", _speedup("zstd-3"), at_least=True),
)
"""What the pager is held to, as promised in PROMISES.md and the design."""

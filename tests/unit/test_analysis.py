"""Go, try or no: the verdict as a function of what was read."""

import pytest

from agentzip import accounting
from agentzip.policy.analysis import HostLoad, Readings, combine, judge

_MIB = 2**20
_IDLE = HostLoad(waiting_share=0.0, busy_share=0.1)


def _readings(*, stays: int = 10, leaves: int = 90, pool: int = 20, smaller: int = 0) -> Readings:
    """Sizes in MiB; `smaller` is the pool with a dictionary of 1 MiB."""
    return Readings(
        rss_bytes=(stays + leaves) * _MIB,
        pss_bytes=(stays + leaves) * _MIB,
        leaving_pss_bytes=leaves * _MIB,
        pages=leaves * 256,
        pool_bytes=pool * _MIB,
        pool_bytes_dictionary=(smaller or pool) * _MIB,
        table_bytes=leaves * 256 * 16,
        dictionary_bytes=_MIB if smaller else 0,
        stays=(("shared: by another process", stays * _MIB),),
    )


@pytest.mark.parametrize(("pool", "decision"), [(20, "go"), (35, "try"), (45, "no"), (90, "no")])
def test_the_ratio_decides(pool: int, decision: str) -> None:
    """From 2.5x go, from 2x try, else no."""
    assert decision == judge(_readings(pool=pool), _IDLE).decision


def test_the_ratio_is_the_one_of_the_accounting() -> None:
    """One definition: what is predicted here is what is reported after a page out."""
    verdict = judge(_readings(), _IDLE)
    gain = accounting.gain(
        baseline_rss=[100 * _MIB],
        baseline_pss=[100 * _MIB],
        after_pss=[10 * _MIB],
        pool_bytes=20 * _MIB,
        table_bytes=90 * 256 * 16,
        overhead_bytes=0,
        available_before=0,
        available_after=0,
    )

    assert (gain.ratio, gain.ratio_pss) == (verdict.ratio, verdict.ratio_pss)
    assert 100 * _MIB - gain.cost_bytes == verdict.saved_bytes


@pytest.mark.parametrize(
    "load",
    [
        HostLoad(waiting_share=0.7, busy_share=0.2),
        HostLoad(waiting_share=None, busy_share=0.99),
    ],
)
def test_a_saturated_host_says_no_and_why(load: HostLoad) -> None:
    """However well the memory compresses."""
    verdict = judge(_readings(pool=5), load)

    assert "no" == verdict.decision
    assert "processors are saturated" in verdict.why
    assert verdict.ratio > 2.5


@pytest.mark.parametrize(
    "load",
    [
        # Busy is not saturated where nobody waits, and a kernel that tells nothing is no reason.
        HostLoad(waiting_share=0.1, busy_share=1.0),
        HostLoad(waiting_share=None, busy_share=None),
    ],
)
def test_a_busy_host_is_not_yet_saturated(load: HostLoad) -> None:
    """Pressure counts before the busy share."""
    assert "go" == judge(_readings(), load).decision


def test_memory_that_stays_is_named_as_the_reason() -> None:
    """A process of little but shared memory is told so."""
    verdict = judge(_readings(stays=80, leaves=20, pool=4), _IDLE)

    assert "no" == verdict.decision
    assert "80% of it stays: shared: by another process" in verdict.why


def test_what_is_shared_anyway_is_no_gain() -> None:
    """A small program of shared libraries has a high ratio, and the machine gains nothing."""
    libraries = Readings(
        rss_bytes=10 * _MIB,
        pss_bytes=2 * _MIB,
        leaving_pss_bytes=_MIB,
        pages=256,
        pool_bytes=_MIB // 2,
        pool_bytes_dictionary=_MIB // 2,
        table_bytes=4096,
        dictionary_bytes=0,
    )

    verdict = judge(libraries, _IDLE)

    assert verdict.ratio > 2.5
    assert ("no", True) == (verdict.decision, "shared with others" in verdict.why)


def test_memory_that_compresses_badly_is_named_as_the_reason() -> None:
    """And one of noise, too."""
    assert "compresses badly" in judge(_readings(pool=88), _IDLE).why


def test_a_dictionary_must_pay_for_itself() -> None:
    """It is mentioned if it saves more than its own bytes, and never decides."""
    saves, costs = _readings(pool=35, smaller=25), _readings(pool=35, smaller=34)

    better, same = judge(saves, _IDLE), judge(costs, _IDLE)

    assert better.ratio_dictionary == pytest.approx(100 / (36 + 90 / 256), rel=1e-3)
    assert f"{better.ratio_dictionary:.2f}x with a dictionary" in better.why
    assert same.ratio_dictionary is None
    assert ["try", "try"] == [better.decision, same.decision]


def test_several_processes_are_judged_together() -> None:
    """Sums of everything; the dictionaries that do not pay are left out."""
    both = combine([_readings(pool=35, smaller=25), _readings(pool=35, smaller=34)])

    assert (200 * _MIB, 180 * _MIB, 70 * _MIB) == (
        both.rss_bytes,
        both.leaving_pss_bytes,
        both.pool_bytes,
    )
    assert ((25 + 35) * _MIB, _MIB) == (both.pool_bytes_dictionary, both.dictionary_bytes)
    assert (("shared: by another process", 20 * _MIB),) == both.stays


def test_nothing_is_no() -> None:
    """A process without memory, as between two programs, divides nothing by nothing."""
    verdict = judge(combine([]), _IDLE)

    assert ("no", 0.0, "it has no memory") == (verdict.decision, verdict.ratio, verdict.why)

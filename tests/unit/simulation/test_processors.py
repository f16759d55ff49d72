"""Weighted sharing of cores."""

from functools import partial
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentzip.simulation.processors import Job, Processors

jobs = st.tuples(
    st.floats(0.001, 10), st.floats(0.1, 4), st.sampled_from([0.1, 1.0]), st.booleans()
)


def finish(processors: Processors) -> None:
    """Work until nothing is left."""
    while (at := processors.next_at()) < inf:
        for job in processors.advance(at):
            job.done()


@given(st.integers(1, 8), st.lists(jobs, max_size=12))
def test_no_work_is_lost_and_none_is_made(
    cores: int, given_jobs: list[tuple[float, float, float, bool]]
) -> None:
    """All jobs end; what they took is what they asked for, and not more than the cores give."""
    processors = Processors(cores)
    ended: list[int] = []
    for number, (work_s, most, weight, own) in enumerate(given_jobs):
        job = Job(work_s, partial(ended.append, number), most, weight, own=own)
        processors.add(job)
    finish(processors)
    asked = sum(work_s for work_s, *_ in given_jobs)
    assert list(range(len(given_jobs))) == sorted(ended)
    assert pytest.approx(asked, abs=1e-6) == processors.own_s + processors.others_s
    assert asked <= processors.now * cores + 1e-6
    assert all(work_s / most <= processors.now + 1e-6 for work_s, most, *_ in given_jobs)


def test_two_jobs_share_one_core() -> None:
    """Each takes twice as long, and the one that is left has the core to itself."""
    processors = Processors(1)
    ends: list[float] = []
    processors.add(Job(1.0, lambda: ends.append(processors.now)))
    processors.add(Job(2.0, lambda: ends.append(processors.now)))
    finish(processors)
    assert [2.0, 3.0] == ends


def test_what_is_nice_has_what_is_left() -> None:
    """A job of a tenth of the weight gets a tenth of the part, and all once it is alone."""
    processors = Processors(1)
    ends: dict[str, float] = {}
    processors.add(Job(1.0, lambda: ends.update(turn=processors.now)))
    processors.add(Job(1.0, lambda: ends.update(encode=processors.now), weight=0.1))
    finish(processors)
    assert {"turn": pytest.approx(1.1), "encode": pytest.approx(2.0)} == ends


def test_what_is_dropped_says_how_far_it_came() -> None:
    """A page out that is interrupted has done a part."""
    processors = Processors(2)
    job = processors.add(Job(4.0, lambda: None, cores=2))
    processors.advance(1.0)
    processors.drop(job)
    processors.drop(job)
    assert (0.5, inf) == (job.share_done, processors.next_at())

"""A simulated run beside a real one."""

from functools import partial
from typing import Any

import pytest

from agentzip.errors import InvalidSetting
from agentzip.policy import planner
from agentzip.simulation.profiles import Measured
from agentzip.simulation.validation import validate

Run = dict[str, Any]


def measured(value: Run) -> Measured:
    """An object as a run."""
    return Measured.of(value, "run.json")


def test_a_run_is_told_again_from_its_own_profile(
    kept: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not hang on luck is within a tenth: memory without us, the pool, the tasks."""
    # When it was made, a tick took 64 MiB at most, and so less of each sandbox had left.
    rules = partial(planner.Rules, pages_per_tick_max=16_384)
    monkeypatch.setattr(planner, "Rules", rules)
    found = validate(measured(kept), measured(kept))
    error = {(one.mode, one.figure): one.error_percent for one in found.compared}
    assert [] == found.missing
    for name in [
        ("none", "mean memory"),
        ("none", "peak memory"),
        *[(mode, "pool") for mode in ("encode", "prefetch", "full")],
        *[(mode, "task") for mode in ("none", "encode", "prefetch", "full")],
    ]:
        assert abs(error[name] or 0.0) < 10
    assert all(0.0 == error[mode, "finished"] for mode in ("none", "encode", "prefetch", "full"))


def test_an_error_is_told_in_percent_of_the_real_figure(kept: Run) -> None:
    """Half of the real memory is an error of 100 %; of nothing there is no error."""
    real = {**kept, "modes": [dict(one) for one in kept["modes"]]}
    first = validate(measured(kept), measured(kept)).compared[0]
    assert ("none", "mean memory") == (first.mode, first.figure)
    real["modes"][0]["cost_bytes"] = first.simulated / 2
    real["modes"][0]["task_s"] = 0.0
    compared = validate(measured(kept), measured(real)).compared
    told = {one.figure: one for one in compared if one.mode == "none"}
    assert pytest.approx(100.0) == told["mean memory"].error_percent
    assert None is told["task"].error_percent


def test_modes_that_cannot_be_simulated_are_told(kept: Run) -> None:
    """The kernel's own ways are in the real run, not in the profile."""
    real = {**kept, "modes": [*kept["modes"], {"mode": "zram"}]}
    assert ["zram"] == validate(measured(kept), measured(real)).missing


@pytest.mark.parametrize(
    ("part", "key", "value", "named"),
    [
        ("plan", "workload", "A", "plan.workload"),
        ("plan", "size_bytes", 1, "plan.size_bytes"),
        ("plan", "seed", None, "plan.seed"),
        ("host", "memory_bytes", 0, "host.memory_bytes"),
        ("host", "watermarks", {}, "host.watermarks.start"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(
    kept: Run, part: str, key: str, value: object, named: str
) -> None:
    """Each message names the field of the real run."""
    real = {**kept, part: {**kept[part], key: value}}
    with pytest.raises(InvalidSetting, match=named):
        validate(measured(kept), measured(real))


def test_a_run_without_samples_cannot_be_compared(kept: Run) -> None:
    """Its peak is not known."""
    real = {**kept, "modes": [{**one, "memory": []} for one in kept["modes"]]}
    with pytest.raises(InvalidSetting, match=r"memory\.cost_bytes of mode none is missing"):
        validate(measured(kept), measured(real))

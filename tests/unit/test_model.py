"""The plain values and their likeness to those of the native module."""

import ast
from dataclasses import asdict, fields
from pathlib import Path

import pytest

import agentzip
from agentzip import model
from agentzip.errors import InvalidSetting
from agentzip.testing import FakeEngine

REPORTS = (
    model.Analysis,
    model.AttachReport,
    model.CensusRow,
    model.ClassForecast,
    model.CompactReport,
    model.DetachReport,
    model.DictionaryInfo,
    model.EngineStats,
    model.Latency,
    model.LearnedSet,
    model.PageInReport,
    model.PageOutReport,
    model.RecodeReport,
    model.Refault,
    model.Region,
    model.SpaceStatus,
    model.SpillReport,
    model.Stay,
    model.TargetInfo,
    model.Training,
    model.WakeReport,
)


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_has_the_fields_of_the_native_one(kind: type) -> None:
    """The dataclasses and the written contract of the seam cannot drift apart."""
    stub = ast.parse((Path(agentzip.__file__).parent / "_native.pyi").read_text())
    declared = {
        node.name: [
            item.target.id  # type: ignore[attr-defined]
            for item in node.body
            if _is_field(item)
        ]
        for node in stub.body
        if isinstance(node, ast.ClassDef)
    }

    assert declared[kind.__name__] == [field.name for field in fields(kind)]


def _is_field(item: ast.stmt) -> bool:
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)


def test_statistics_survive_the_way_over_json() -> None:
    """A report made into a mapping and back is equal, nested latencies included."""
    stats = FakeEngine().stats()

    assert stats == model.from_mapping(model.EngineStats, asdict(stats))
    assert stats == model.from_object(model.EngineStats, stats)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm", "gzip"),
        ("fault_threads", 0),
        ("fault_threads", 17),
        ("chunk_pages", 8),
        ("stop_limit_us", 1),
        ("pool_bytes_max", 10),
        ("level", 40),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    """The message names the field, and the hint says what is allowed."""
    with pytest.raises(InvalidSetting, match=field) as caught:
        model.Settings(run_dir=Path("run"), **{field: value})  # type: ignore[arg-type]

    assert caught.value.hint


def test_the_level_has_a_default_per_algorithm() -> None:
    """No level means 3 for zstd and the fast mode for lz4."""
    levels = [
        model.Settings(run_dir=Path("run"), algorithm=name).effective_level
        for name in model.ALGORITHMS
    ]

    assert [3, 0, 0] == levels

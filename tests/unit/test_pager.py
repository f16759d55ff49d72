"""The door to the engine, with a stand-in behind it."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from agentzip import model, pager
from agentzip.errors import InternalError
from agentzip.testing import FakeEngine, FakeTarget


class NativeSettings:
    """Keeps what it was given."""

    def __init__(self, run_dir: str, **values: object) -> None:
        self.given = {"run_dir": run_dir, **values}


class NativeEngine(FakeEngine):
    """A fake that is made as the native one is."""

    def __init__(self, settings: NativeSettings) -> None:
        super().__init__([FakeTarget(7, pages=10)])
        self.settings = settings


def _regions(pid: int, engine: FakeEngine | None = None) -> list[model.Region]:
    return (engine or FakeEngine([FakeTarget(7)])).regions(pid)


def _describe(pid: int) -> model.TargetInfo:
    return model.TargetInfo(pid, 1, "true", 1, 0)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module in the place of the native one."""
    module = ModuleType("agentzip._native")
    module.Engine = NativeEngine  # type: ignore[attr-defined]
    module.EngineSettings = NativeSettings  # type: ignore[attr-defined]
    module.regions = _regions  # type: ignore[attr-defined]
    module.features = lambda: {"uffd_move": ""}  # type: ignore[attr-defined]
    module.describe = _describe  # type: ignore[attr-defined]
    module.CRASH_POINTS = ["attach.grab"]  # type: ignore[attr-defined]
    module.PAGE_SIZE = 4096  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "agentzip._native", module)
    monkeypatch.setattr("agentzip._native", module, raising=False)
    return module


@pytest.mark.usefixtures("native")
def test_settings_reach_the_engine_with_their_defaults() -> None:
    """Every setting is handed over by name, the level of the algorithm filled in."""
    engine = pager.open_engine(model.Settings(run_dir=Path("run"), algorithm="lz4"))
    given = engine._engine.settings.given  # type: ignore[attr-defined]

    assert "run" == given["run_dir"]
    assert "lz4" == given["algorithm"]
    assert 0 == given["level"]
    assert None is given["crash_at"]


@pytest.mark.usefixtures("native")
def test_every_method_returns_the_plain_values() -> None:
    """What comes back are dataclasses of `model`, never native objects."""
    engine = pager.open_engine(model.Settings(run_dir=Path("run")))

    assert model.AttachReport is type(engine.attach(7, 1))
    assert model.PageOutReport is type(engine.page_out(7))
    assert model.SpaceStatus is type(engine.spaces()[0])
    assert model.EngineStats is type(engine.stats())
    assert model.Region is type(engine.regions(7)[0])
    assert model.PageInReport is type(engine.page_in(7))
    assert model.DetachReport is type(engine.detach(7))
    assert [] == engine.adopted()
    engine.reset_stats()
    engine.close()


@pytest.mark.usefixtures("native")
def test_the_module_functions_need_no_engine() -> None:
    """Features, regions and a description can be had before an engine is opened."""
    assert {"uffd_move": ""} == pager.features()
    assert 2 == len(pager.regions(7))
    assert 7 == pager.describe(7).pid
    assert ["attach.grab"] == pager.crash_points()
    assert 4096 == pager.page_size()


def test_a_missing_native_module_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the native module the error says how to get it."""
    monkeypatch.setitem(sys.modules, "agentzip._native", None)
    monkeypatch.delattr("agentzip._native", raising=False)

    with pytest.raises(InternalError) as caught:
        pager.features()

    assert "make setup" in caught.value.hint

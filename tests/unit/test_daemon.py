"""The daemon around a fake engine: start, tick, stop."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from agentzip.control import SOCKET_NAME, ControlClient
from agentzip.daemon import Daemon, EmbeddedDaemon, RepeatFilter, default_run_dir
from agentzip.daemon import serving as daemon_module
from agentzip.errors import AlreadyRunning, Unsupported
from agentzip.model import Settings
from agentzip.pager import Pager
from agentzip.testing import FakeEngine, FakeTarget


@pytest.fixture
def engine() -> FakeEngine:
    """A host with two processes."""
    return FakeEngine([FakeTarget(7, pages=100), FakeTarget(8, pages=50)])


@pytest.fixture
def factory(engine: FakeEngine) -> Callable[[Settings], Pager]:
    """Opens that engine."""
    return lambda _settings: engine


def test_a_stop_gives_everything_back(
    engine: FakeEngine, factory: Callable[[Settings], Pager], tmp_path: Path
) -> None:
    """After a stop nothing is attached, the engine is closed and the socket is gone."""
    service = Daemon(Settings(run_dir=tmp_path / "run"), factory)
    service.start()
    engine.attach(7)
    engine.page_out(7)
    service.request_stop()
    outcome = service.serve()

    assert outcome.complete
    assert engine.closed
    assert [] == engine.spaces()
    assert not (tmp_path / "run" / SOCKET_NAME).exists()


def test_a_daemon_can_be_stopped_over_its_socket(
    factory: Callable[[Settings], Pager], tmp_path: Path
) -> None:
    """`shutdown` has the effect of a signal."""
    service = Daemon(Settings(run_dir=tmp_path), factory)
    service.start()
    with ControlClient(tmp_path, timeout_seconds=5) as client:
        client.shutdown()

    assert service.serve().complete


def test_pages_that_cannot_come_home_are_left_with_the_keeper(
    engine: FakeEngine, factory: Callable[[Settings], Pager], tmp_path: Path
) -> None:
    """At the deadline the stop ends and says how much is still out."""
    engine.targets[7].pages_stuck = 40
    service = Daemon(Settings(run_dir=tmp_path), factory, stop_seconds_max=0)
    service.start()
    engine.attach(7)
    engine.page_out(7)
    outcome = service.stop()

    assert not outcome.complete
    assert (1, 40) == (outcome.targets_left, outcome.pages_out)
    assert not engine.closed


def test_a_second_request_ends_the_waiting(
    engine: FakeEngine, factory: Callable[[Settings], Pager], tmp_path: Path
) -> None:
    """Two requests to stop mean: do not wait for pages to come home."""
    service = Daemon(Settings(run_dir=tmp_path), factory)
    service.start()
    engine.attach(7)
    engine.page_out(7)
    service.request_stop()
    service.request_stop()
    outcome = service.serve()

    assert not outcome.complete
    assert 100 == outcome.pages_out


def test_a_stop_happens_once(
    engine: FakeEngine, factory: Callable[[Settings], Pager], tmp_path: Path
) -> None:
    """The second stop returns what the first found and touches nothing."""
    service = Daemon(Settings(run_dir=tmp_path), factory)
    service.start()
    engine.attach(7)
    first = service.stop()
    calls = list(engine.calls)

    assert first == service.stop()
    assert calls == engine.calls


def test_a_start_that_fails_closes_the_engine(
    engine: FakeEngine,
    factory: Callable[[Settings], Pager],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a socket the engine does not stay behind."""

    def refuse(*_arguments: object) -> None:
        raise AlreadyRunning("somebody is here")

    monkeypatch.setattr(daemon_module, "ControlServer", refuse)
    with pytest.raises(AlreadyRunning):
        Daemon(Settings(run_dir=tmp_path), factory).start()

    assert engine.closed


def test_the_tick_logs_what_changed(
    engine: FakeEngine,
    factory: Callable[[Settings], Pager],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """New targets, ended targets, lost pages, a dead keeper and panics are each said once."""
    caplog.set_level(logging.INFO)
    service = Daemon(Settings(run_dir=tmp_path), factory)
    service.start()
    engine.attach(7)
    service.tick()
    engine.end_target(7)
    engine.pages_lost = 3
    engine.keeper_restarts = 1
    engine.fault_panics = 2
    service.tick()
    service.tick()
    service.stop()
    said = [record.getMessage() for record in caplog.records]

    assert 1 == sum("managing space 1 (pid 7" in text for text in said)
    assert 1 == sum("space 1 is gone (pid 7" in text for text in said)
    assert 1 == sum("3 pages failed their checksum" in text for text in said)
    assert 1 == sum("the keeper died" in text for text in said)
    assert 1 == sum("fault threads panicked (2 times)" in text for text in said)


def test_targets_of_a_killed_daemon_are_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was taken over from the keeper is logged."""
    caplog.set_level(logging.INFO)
    engine = FakeEngine([FakeTarget(7)], adopted=[7])
    service = Daemon(Settings(run_dir=tmp_path), lambda _: engine)
    service.start()
    service.stop()

    assert any("took over 1 targets" in record.getMessage() for record in caplog.records)


def test_an_embedded_daemon_detaches_on_an_error(
    engine: FakeEngine, factory: Callable[[Settings], Pager], tmp_path: Path
) -> None:
    """An exception in the block does not leave anything attached."""
    embedded = EmbeddedDaemon(Settings(run_dir=tmp_path), private=True, engine_factory=factory)

    def work() -> None:
        with embedded:
            embedded.engine.attach(7)
            embedded.engine.page_out(7)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()

    assert [] == engine.spaces()
    assert engine.closed
    assert [] == list(tmp_path.iterdir())


def test_an_embedded_daemon_detaches_on_ctrl_c(
    engine: FakeEngine, factory: Callable[[Settings], Pager], tmp_path: Path
) -> None:
    """Ctrl-C in the block is an error like any other."""
    embedded = EmbeddedDaemon(Settings(run_dir=tmp_path), engine_factory=factory)

    def work() -> None:
        with embedded:
            embedded.engine.attach(8)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()

    assert embedded.outcome is not None
    assert embedded.outcome.complete
    assert [] == engine.spaces()


def test_a_private_directory_does_not_outlive_a_failed_start(tmp_path: Path) -> None:
    """An engine that cannot start leaves no directory."""

    def refuse(_settings: Settings) -> Pager:
        raise Unsupported("no UFFDIO_MOVE")

    with (
        pytest.raises(Unsupported),
        EmbeddedDaemon(Settings(run_dir=tmp_path), private=True, engine_factory=refuse),
    ):
        pass

    assert [] == list(tmp_path.iterdir())


def test_an_embedded_daemon_is_used_only_in_its_block(tmp_path: Path) -> None:
    """Outside the block there is no engine."""
    with pytest.raises(RuntimeError):
        _ = EmbeddedDaemon(Settings(run_dir=tmp_path)).engine


def test_a_repeated_message_is_logged_once_a_minute() -> None:
    """Repeats are held back and counted, whatever the numbers in them."""
    now = 0.0
    repeats = RepeatFilter(clock=lambda: now)
    records = [logging.LogRecord("a", 30, "", 1, "failed %d", (n,), None) for n in range(4)]
    passed = [repeats.filter(record) for record in records[:3]]
    now = 61.0
    passed.append(repeats.filter(records[3]))

    assert [True, False, False, True] == passed
    assert "failed 3 (and 2 more like this)" == records[3].getMessage()


def test_the_run_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENTZIP_RUN_DIR wins over the default."""
    monkeypatch.delenv("AGENTZIP_RUN_DIR", raising=False)
    default = default_run_dir()
    monkeypatch.setenv("AGENTZIP_RUN_DIR", "elsewhere")

    assert Path("/run/agentzip") == default
    assert Path("elsewhere") == default_run_dir()

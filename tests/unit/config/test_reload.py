"""A changed file while the daemon runs, and paths that cannot be used on this host."""

from pathlib import Path

import pytest

from agentzip import config
from agentzip.cli import main
from agentzip.errors import InvalidSetting


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that holds."""
    found = tmp_path / "config.yaml"
    found.write_text(f"state_dir: {tmp_path}/state\npolicy: {{latency_target: 20ms}}\n")
    return found


def _append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def test_what_holds_at_once_holds_and_is_named(file: Path) -> None:
    """Policy and scopes; the source moves along."""
    current = config.load_file(file)
    file.write_text(file.read_text().replace("20ms", "5ms"))
    _append(file, "scopes: [{cgroup: a}]\n")
    result = config.reload(file, current)

    assert 0.005 == result.effective.config.policy.latency_target
    assert ["a"] == [scope.cgroup for scope in result.effective.config.scopes]
    assert "policy.latency_target" in result.changed
    assert "scopes.0.cgroup" in result.changed
    assert [] == result.waiting
    assert [] == config.reload(file, result.effective).changed


def test_what_waits_for_a_restart_is_named_each_time(file: Path) -> None:
    """It keeps its running value, whose source is shown."""
    current = config.load_file(file)
    _append(file, "pool: {max_size: 1GB, defrag: false}\nmetrics: {listen: '127.0.0.1:9477'}\n")
    for _ in range(2):
        result = config.reload(file, current)
        assert ["pool.max_size", "metrics.listen"] == result.waiting
        assert 8 * 10**9 == result.effective.config.pool.max_size
        assert None is result.effective.config.metrics.listen
        assert not result.effective.config.pool.defrag
        assert "default" == result.effective.sources["pool.max_size"]
        current = result.effective


def test_a_bad_file_changes_nothing_and_is_named(file: Path) -> None:
    """The key is in the message; what held still holds."""
    current = config.load_file(file)
    before = current.rows()
    _append(file, "pool: {max_size: 8G}\n")
    with pytest.raises(InvalidSetting, match=r"pool\.max_size") as caught:
        config.reload(file, current)

    assert "8GB" in caught.value.hint
    assert before == current.rows()
    file.unlink()
    with pytest.raises(InvalidSetting, match="not found"):
        config.reload(file, current)


def test_options_of_the_start_still_win(file: Path) -> None:
    """The file cannot undo what the command line said."""
    options = {"pool.max_size": ("--pool-size", "1GiB")}
    current = config.load_file(file, options)
    _append(file, "pool: {max_size: 2GiB}\n")
    result = config.reload(file, current, options)

    assert (2**30, []) == (result.effective.config.pool.max_size, result.waiting)


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("state_dir: {0}/file/below", "state_dir", "cannot be, as .*/file is no directory"),
        ("pool: {{swap_out_path: {0}/no/swap}}", "pool.swap_out_path", "directory that is not"),
        ("pool: {{swap_out_path: {0}/file/swap}}", "pool.swap_out_path", "directory that is not"),
        ("pool: {{swap_out_path: {0}/folder}}", "pool.swap_out_path", "no regular file"),
        ("hints: {{sandbox_socket: {0}/file}}", "hints.sandbox_socket", "there already"),
        ("hints: {{sandbox_socket: {0}/file/s}}", "hints.sandbox_socket", "is no directory"),
    ],
)
def test_a_path_that_cannot_be_used_is_named_with_its_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, key: str, problem: str
) -> None:
    """As a wrong value is: line, key, path, fix, exit code 2."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    file = tmp_path / "config.yaml"
    file.write_text(text.format(tmp_path))
    with pytest.raises(InvalidSetting, match=rf"config.yaml:1: {key} .*{problem}.*: '") as caught:
        config.load_file(file)

    assert caught.value.hint
    (found,) = config.problems_of(file.read_text(), on_host=True)
    assert (key, 1) == (found.key, found.line)
    assert 2 == main(["config", "check", str(file)])
    assert key in capsys.readouterr().err
    # Values alone are checked on any host.
    assert [] == config.problems_of(file.read_text())


def test_a_directory_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everywhere, so the kernel's answer is played here."""
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(InvalidSetting, match=r"state_dir .*may not be written"):
        config.load_file(_file(tmp_path, f"state_dir: {tmp_path}"))


def test_what_the_daemon_makes_need_not_be_there(tmp_path: Path) -> None:
    """State directory, socket, and a swap file below the state directory."""
    text = (
        f"state_dir: {tmp_path}/lib/agentzip\npool: {{swap_out_path: {tmp_path}/lib/agentzip/swap}}"
        f"\nhints: {{sandbox_socket: {tmp_path}/run/hints.sock}}\n"
    )
    assert config.load_file(_file(tmp_path, text)).config.pool.swap_out_path


def test_the_environment_names_the_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It wins over the file."""
    held = config.load("state_dir: /srv/agentzip/").config
    monkeypatch.delenv(config.STATE_DIR_VARIABLE, raising=False)
    assert "/srv/agentzip" == config.state_dir(held)
    monkeypatch.setenv(config.STATE_DIR_VARIABLE, "/srv/other")
    assert "/srv/other" == config.state_dir(held)


def _file(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text)
    return file

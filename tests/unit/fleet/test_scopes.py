"""Rules that select sandboxes: their order, what commands change, what is kept."""

import json
import logging
import stat
from pathlib import Path

import pytest

from agentzip.config import Scope
from agentzip.errors import InvalidSetting, NoSuchProcess, NoSuchScope
from agentzip.fleet.scopes import STATE_FILE, Scopes
from unit.host.fake_host import FakeHost

CONFIGURED = [Scope(cgroup="agent-*", isolation="sandbox"), Scope(cgroup="b/*/c", enabled=False)]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """A host with one process."""
    found = FakeHost(tmp_path / "host")
    found.start(7)
    return found


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory that is not there yet."""
    return tmp_path / "lib" / "agentzip"


def _patterns(scopes: Scopes) -> list[tuple[str, bool]]:
    return [(rule.pattern, rule.enabled) for rule in scopes.rules()]


def test_the_order_is_file_then_commands_then_processes(host: FakeHost, state: Path) -> None:
    """And it stays so over a restart."""
    scopes = Scopes(CONFIGURED, state, host.root)
    scopes.add("pid:7")
    scopes.add("z-*")
    scopes.add("/a-*/", "sandbox")

    expected = [
        ("agent-*", True),
        ("b/*/c", False),
        ("z-*", True),
        ("/a-*", True),
        ("pid:7", True),
    ]
    assert expected == _patterns(scopes)
    again = Scopes(CONFIGURED, state, host.root)
    assert expected == _patterns(again)
    assert scopes.rules() == again.rules()


def test_what_is_kept_is_for_the_owner_alone(host: FakeHost, state: Path) -> None:
    """File and directory."""
    Scopes((), state, host.root).add("a")

    assert 0o600 == stat.S_IMODE((state / STATE_FILE).stat().st_mode)
    assert 0o700 == stat.S_IMODE(state.stat().st_mode)
    assert [STATE_FILE] == [path.name for path in state.iterdir()]


def test_a_scope_of_the_file_is_switched_and_not_removed(host: FakeHost, state: Path) -> None:
    """The switch is kept; adding it again switches it on and leaves its isolation."""
    scopes = Scopes(CONFIGURED, state, host.root)
    scopes.enable("agent-*", enabled=False)
    scopes = Scopes(CONFIGURED, state, host.root)
    assert not scopes.find("agent-*").enabled

    with pytest.raises(InvalidSetting, match="the configuration names this scope"):
        scopes.remove("agent-*")
    added = scopes.add("agent-*", "scope")
    assert (True, "sandbox", "config") == (added.enabled, added.isolation, added.source)


def test_a_command_s_scope_is_disabled_and_removed(host: FakeHost, state: Path) -> None:
    """An unknown one is named."""
    scopes = Scopes((), state, host.root)
    scopes.add("x-*")
    assert not scopes.enable("x-*", enabled=False).enabled
    assert scopes.add("x-*").enabled
    scopes.remove("x-*")

    for ask in (scopes.find, scopes.remove, lambda name: scopes.enable(name, enabled=True)):
        with pytest.raises(NoSuchScope, match=r"x-\*"):
            ask("x-*")
    assert () == Scopes((), state, host.root).rules()


@pytest.mark.parametrize(
    ("pattern", "isolation", "named"),
    [
        ("*", "scope", r"pattern selects every cgroup of the host: '\*'"),
        ("", "scope", "pattern is no cgroup pattern: ''"),
        ("pid:0", "scope", "pid:0"),
        ("pid:x", "scope", "pid:x"),
        ("run:x", "scope", "run:x"),
        ("a", "tenant", "isolation is not known: 'tenant'"),
    ],
)
def test_what_is_no_scope_is_not_added(
    host: FakeHost, state: Path, pattern: str, isolation: str, named: str
) -> None:
    """Nothing is kept then."""
    scopes = Scopes((), state, host.root)
    with pytest.raises(InvalidSetting, match=named):
        scopes.add(pattern, isolation)

    assert not state.exists()


def test_a_process_is_told_by_its_start(host: FakeHost, state: Path) -> None:
    """A restart keeps it; another process with the pid, or another boot, ends it."""
    started = host.start(7)
    Scopes((), state, host.root).add("pid:7")
    assert started == Scopes((), state, host.root).find("pid:7").start_time
    host.boot("two")
    assert () == Scopes((), state, host.root).rules()
    host.boot("one")
    host.start(7)
    assert () == Scopes((), state, host.root).rules()
    host.end(7)
    with pytest.raises(NoSuchProcess):
        Scopes((), state, host.root).add("pid:7")


def test_a_run_has_its_name_while_it_lives(host: FakeHost, state: Path) -> None:
    """Two cannot have one; a name has to be plain."""
    scopes = Scopes((), state, host.root)
    rule = scopes.run("demo", 7, host.started)
    assert ("run:demo", "run", "demo") == (rule.pattern, rule.source, rule.sandbox_name)
    other = host.start(8)
    with pytest.raises(InvalidSetting, match="in use: demo"):
        scopes.run("demo", 8, other)
    for name in ("", "a/b", "-a", "a b", "x" * 65, "ä"):
        with pytest.raises(InvalidSetting, match="name"):
            scopes.run(name, 8, other)
    with pytest.raises(NoSuchProcess):
        scopes.run("other", 8, other - 1)
    scopes.ended(rule)
    assert "run:demo" == scopes.run("demo", 8, other).pattern


def test_a_changed_file_keeps_what_commands_said(host: FakeHost, state: Path) -> None:
    """What was switched in the file is forgotten with it; a pattern that comes in is the file's."""
    scopes = Scopes(CONFIGURED, state, host.root)
    scopes.add("x-*")
    scopes.enable("agent-*", enabled=False)
    entry = {"cgroup": "x-*", "isolation": "sandbox", "latency_target": "5ms"}
    scopes.configure([Scope.model_validate(entry)])
    assert [("x-*", True)] == _patterns(scopes)
    assert ("config", 0.005) == (scopes.find("x-*").source, scopes.find("x-*").latency_target)
    scopes.configure(CONFIGURED)
    assert [("agent-*", True), ("b/*/c", False), ("x-*", True)] == _patterns(scopes)


def test_rules_are_the_same_object_until_one_changes(host: FakeHost) -> None:
    """Whoever looks each second need not compare them."""
    scopes = Scopes(CONFIGURED, None, host.root)
    before = scopes.rules()

    assert before is scopes.rules()
    scopes.add("x")
    assert before is not scopes.rules()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "[" * 100_000, '{"format": 2}', '{"format": 1}']
    + [
        json.dumps({"format": 1, "boot": "", "scopes": scopes, "switched": {}, "processes": []})
        for scopes in ([3], [{"pattern": "*", "enabled": True, "isolation": "scope"}], {"a": 1})
    ],
)
def test_a_damaged_file_is_put_aside_and_said(
    host: FakeHost, state: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """The daemon starts, with the configuration's rules; the text is not lost."""
    state.mkdir(parents=True)
    (state / STATE_FILE).write_text(text)
    with caplog.at_level(logging.ERROR):
        scopes = Scopes(CONFIGURED, state, host.root)

    assert 2 == len(scopes.rules())
    assert "is damaged" in caplog.text
    assert text == (state / f"{STATE_FILE}.damaged").read_text()
    scopes.add("x")
    assert 3 == len(Scopes(CONFIGURED, state, host.root).rules())


def test_a_file_that_others_may_write_is_not_believed(
    host: FakeHost, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would tell a process of root's what to do; a link could point anywhere."""
    Scopes((), state, host.root).add("x")
    (state / STATE_FILE).chmod(0o622)
    assert () == Scopes((), state, host.root).rules()
    assert "others may write it" in caplog.text
    (state / STATE_FILE).chmod(0o600)
    (state / STATE_FILE).rename(state / "elsewhere")
    (state / STATE_FILE).symlink_to(state / "elsewhere")
    assert () == Scopes((), state, host.root).rules()


def test_a_change_that_cannot_be_kept_is_not_made(
    host: FakeHost, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """But a run goes on without: it ends with its process anyway."""
    state.parent.mkdir()
    state.write_text("a file where the directory should be")
    scopes = Scopes(CONFIGURED, state, host.root)
    before = scopes.rules()
    with pytest.raises(InvalidSetting, match="state_dir cannot keep the scopes"):
        scopes.add("x")
    with pytest.raises(InvalidSetting, match="state_dir"):
        scopes.enable("agent-*", enabled=False)

    assert before is scopes.rules()
    scopes.run("demo", 7, host.started)
    assert 3 == len(scopes.rules())
    assert "cannot be kept over a restart" in caplog.text

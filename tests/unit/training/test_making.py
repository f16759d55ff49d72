"""Making a dictionary: real processes, and an engine that hands out what the test gives it."""

import contextlib
import json
import os
import struct
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from agentzip import dictionaries, model, training
from agentzip.cli import main
from agentzip.errors import DictionaryRefused, InvalidSetting, NoSuchProcess
from agentzip.host import processes
from agentzip.training import making

HEAD = struct.pack("<II", 0xEC30A437, 7)
GOOD = HEAD + b"\x01\x02\x03 common text " * 2000
WAITING = [sys.executable, "-c", "import time; time.sleep(100)"]


@dataclass
class Training:
    """What a training made."""

    id: int = 3
    pages_sampled: int = 1234
    gain: float = 1.25


@dataclass
class Double:
    """An engine whose training makes what the test says."""

    data: bytes = GOOD
    gain: float = 1.25
    attached: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def attach(self, pid: int, start_time: int | None = None) -> None:
        """It must be there, and be the one that was meant."""
        assert processes.process(pid).start_time == start_time
        self.attached.append(pid)
        self.calls.append("attach")

    def detach(self, pid: int) -> None:
        """It must still live: a target is given back before it is ended."""
        assert processes.process(pid).state not in "ZX"
        self.calls.append("detach")

    def train(self, pid: int, *, bytes_max: int, pages_max: int) -> Training:
        """Only a target is learned from."""
        assert [pid] == self.attached
        assert (262_144, 8000) == (bytes_max, pages_max)
        self.calls.append("train")
        return Training(gain=self.gain)

    def dictionary_bytes(self, dictionary_id: int) -> bytes:
        """The bytes that were ordered."""
        assert 3 == dictionary_id
        return self.data

    def drop_dictionary(self, dictionary_id: int) -> None:
        """What is written to a file is not kept."""
        assert 3 == dictionary_id
        self.calls.append("drop")


def _make(
    double: Double, command: list[str] | None = None, *, private: bool = False
) -> making.Made:
    return training.make(
        double,
        training.command_recipe(command or WAITING),
        after_seconds=0.2,
        private=private,
        words=lambda: {"host-of-mine", "secret-token-0123456789"},
    )


def test_a_dictionary_comes_with_its_facts() -> None:
    """The process is learned from, given back and ended; the facts are those of the bytes."""
    double = Double()
    made = _make(double)

    assert GOOD == made.data
    assert ["attach", "train", "drop", "detach"] == double.calls
    assert (len(GOOD), 1.25, 1234) == (
        made.facts.bytes,
        made.facts.gain,
        made.facts.pages_sampled,
    )
    assert dictionaries.digest(GOOD) == made.facts.sha256
    assert not made.facts.private
    assert not _lives(double.attached[0])


def _lives(pid: int) -> bool:
    try:
        return processes.process(pid).state not in "ZX"
    except NoSuchProcess:
        return False


def test_the_largest_process_is_learned_from() -> None:
    """A shell that starts the real program is not it."""
    double = Double()
    large = "import time; held = bytearray(64 << 20); time.sleep(100)"
    command = ["sh", "-c", f'"{sys.executable}" -c "{large}"; true']
    made = training.make(double, training.command_recipe(command), after_seconds=1.0, words=set)

    assert made.facts.recipe.startswith("agentzip dict train -- sh -c")
    assert not _lives(double.attached[0])


@pytest.mark.parametrize("double", [Double(gain=1.01), Double(data=HEAD + b"x" * 127)])
def test_what_does_not_pay_is_refused(double: Double) -> None:
    """A gain of nothing, or the 135 bytes that a trainer returns when it found nothing."""
    with pytest.raises(DictionaryRefused, match="does not pay"):
        _make(double)

    assert "detach" == double.calls[-1]
    assert not _lives(double.attached[0])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-32-le"])
def test_traces_of_this_machine_are_refused(encoding: str) -> None:
    """In any encoding; with `private` they stay and the facts say so."""
    double = Double(data=GOOD + "host-of-mine".encode(encoding))
    with pytest.raises(DictionaryRefused, match="traces of this machine: 'host-of-mine'"):
        _make(double)

    assert _make(Double(data=double.data), private=True).facts.private


def test_a_secret_is_not_printed() -> None:
    """Only the beginning of a long word is shown."""
    with pytest.raises(DictionaryRefused) as caught:
        _make(Double(data=GOOD + b"secret-token-0123456789"))

    assert "'secret-t'" in str(caught.value)
    assert "0123456789" not in str(caught.value)


def test_words_of_this_machine_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment and folders count, what every machine has does not."""
    monkeypatch.setenv("API_TOKEN", "tok-123456")
    monkeypatch.setenv("PATH", "/usr/bin:/somewhere/special/bin")
    words = training.machine_words()

    assert {"tok-123456", "/somewhere/special/bin", os.getcwd()} <= words
    assert not {"root", "/usr/bin", "/usr/local/bin", "", "/"} & words
    assert min(len(word) for word in words) >= 5


def test_a_command_sees_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its environment is the clean one."""
    monkeypatch.setenv("API_TOKEN", "tok-123456")
    seen: list[dict[str, str]] = []

    class Looking(Double):
        def train(self, pid: int, *, bytes_max: int, pages_max: int) -> Training:
            seen.append(processes.environment(pid))
            return super().train(pid, bytes_max=bytes_max, pages_max=pages_max)

    _make(Looking())

    assert {"PATH", "HOME", "LANG"} >= set(seen[0]) - {"LC_CTYPE"}


@pytest.mark.parametrize(
    ("command", "message"),
    [(["/bin/true"], "ended before it was learned from"), (["/no/such"], "cannot be started")],
)
def test_a_command_that_does_not_run_on_is_told(command: list[str], message: str) -> None:
    """There is nothing to learn from."""
    with pytest.raises(InvalidSetting, match=message):
        _make(Double(), command)


@pytest.mark.parametrize(
    "program", ["import sys; sys.exit('no module here')", "print('something else')"]
)
def test_a_recipe_that_fails_says_what_its_program_said(program: str, tmp_path: Path) -> None:
    """The last words of it are in the message."""
    file = tmp_path / "program.py"
    file.write_text(program)
    recipe = training.Recipe(
        name="broken",
        source="",
        text="",
        command=lambda: [sys.executable, "-"],
        program=file,
        says_ready=True,
    )
    with pytest.raises(InvalidSetting, match=r"ended before it was ready: '(no module|something)"):
        training.make(Double(), recipe)


def test_a_recipe_is_ready_when_its_program_says_so(tmp_path: Path) -> None:
    """Not a moment before: the word may come in pieces and behind other output."""
    file = tmp_path / "program.py"
    file.write_text(
        "import sys, time\n"
        "print('x' * 100000); sys.stdout.write('rea'); sys.stdout.flush(); time.sleep(0.2)\n"
        "held = bytearray(1000); sys.stdout.write('dy\\n'); sys.stdout.flush(); time.sleep(100)\n"
    )
    recipe = training.Recipe(
        name="slow",
        source="s",
        text="t",
        command=lambda: [sys.executable, "-"],
        program=file,
        says_ready=True,
    )

    assert "slow" == training.make(Double(), recipe, words=set).facts.name


# ── files ─────────────────────────────────────────────────────────────────────────────────────────
def _written(folder: Path) -> Path:
    made = _make(Double())
    path = folder / "made.zdict"
    dictionaries.write(made.data, made.facts, path)
    return path


def test_a_written_dictionary_is_read_again(tmp_path: Path) -> None:
    """Bytes and facts are the same."""
    path = _written(tmp_path)

    assert GOOD == dictionaries.read(path)
    assert dictionaries.find(str(path)) == path
    assert len(GOOD) == dictionaries.facts_of(path).bytes


def test_a_damaged_dictionary_is_not_used(tmp_path: Path) -> None:
    """Other bytes, no dictionary, no facts: each is told."""
    path = _written(tmp_path)
    path.write_bytes(GOOD + b"!")
    with pytest.raises(InvalidSetting, match="not the one that its facts describe"):
        dictionaries.read(path)
    path.write_bytes(b"text, and more text")
    with pytest.raises(InvalidSetting, match="no zstd dictionary"):
        dictionaries.read(path)
    path.write_bytes(GOOD)
    for facts in ("", "[]", "{}", '{"name": 3'):
        path.with_suffix(".json").write_text(facts)
        with pytest.raises(InvalidSetting, match="facts of the dictionary cannot be read"):
            dictionaries.read(path)
    with pytest.raises(InvalidSetting, match="dictionary is not found"):
        dictionaries.find("no-such")


def test_the_commands_show_and_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`dict show` checks the file; `dict list` works without a daemon."""
    path = _written(tmp_path)

    assert 0 == main(["dict", "show", str(path)])
    assert "gain on other pages of them 1.25x" in capsys.readouterr().out
    assert 0 == main(["dict", "show", str(path), "--json"])
    assert 0 == json.loads(capsys.readouterr().out)["traces_of_this_machine"]
    assert 0 == main(["--run-dir", str(tmp_path), "dict", "list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert listed["live"] is None
    assert [file.stem for file in dictionaries.prebuilt()] == [
        f["name"] for f in listed["prebuilt"]
    ]


def test_the_dictionaries_of_a_daemon_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a daemon running, those that it holds come beside the prebuilt ones."""
    held = [model.DictionaryInfo(4, "trained", "9f", 262_144, 70, True)]

    class Client(contextlib.nullcontext["Client"]):
        def __init__(self, _run_dir: Path) -> None:
            super().__init__(self)

        def call(self, method: str) -> list[dict[str, object]]:
            assert "dictionaries" == method
            return [asdict(item) for item in held]

    monkeypatch.setattr("agentzip.cli.dictionary.ControlClient", Client)

    assert 0 == main(["dict", "list", "--json"])
    assert [asdict(item) for item in held] == json.loads(capsys.readouterr().out)["live"]
    assert 0 == main(["dict", "list"])
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert ["4", "trained", "9f", "256.0", "KiB", "70", "dropped"] == row


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "x.bin", "--", "ls"], "--out is no dictionary file"),
        (["--out", "x.zdict"], "needs a command or --recipe"),
        (["--out", "x.zdict", "--recipe", "v8", "--", "ls"], "needs a command or --recipe"),
        (["--out", "x.zdict", "--recipe", "cobol"], "--recipe is not known: 'cobol'"),
        (["--out", "x.zdict", "--size", "1GB", "--", "ls"], "--size is out of range"),
        (["--out", "x.zdict", "--after", "5", "--", "ls"], "--after is not a duration"),
    ],
)
def test_bad_input_of_train_is_told(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    assert 2 == main(["dict", "train", *words])
    assert message in capsys.readouterr().err


# ── the prebuilt ones ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("path", dictionaries.prebuilt(), ids=lambda path: path.stem)
def test_a_prebuilt_dictionary_is_what_its_facts_say(path: Path) -> None:
    """Right bytes, a committed recipe, a gain, and nothing of this machine."""
    data = dictionaries.read(path)
    facts = dictionaries.facts_of(path)

    assert path.stem == facts.name
    assert training.RECIPES[facts.name].text == facts.recipe
    assert training.RECIPES[facts.name].source == facts.source
    assert len(data) == facts.bytes <= dictionaries.BYTES_MAX
    assert facts.gain > 1.02
    assert not facts.private
    assert [] == training.traces(data, training.machine_words())


def test_every_prebuilt_dictionary_is_there() -> None:
    """One for each recipe and for each name that the configuration knows."""
    from agentzip.config.keys import PREBUILT

    assert set(PREBUILT) == set(training.RECIPES)
    assert set(PREBUILT) == {path.stem for path in dictionaries.prebuilt()}

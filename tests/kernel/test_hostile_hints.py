"""
A sandbox that means harm says what it can on its socket: it reaches itself and nobody else.

With a real daemon, real control groups and the words as bytes: names that lead elsewhere, lines
that pretend to be several, bodies that are too large, and groups whose own names are a trap.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentzip.errors import InvalidSetting, NoSuchSandbox
from agentzip.sandboxes import SandboxStatus
from daemon_stage import ACTS, DaemonStage, Sleeper, stage_of
from source_tree import ROOT

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(110)]

_INSIDE = """
import sys, time
sys.path[:0] = [sys.argv[3]]
open(sys.argv[1], "w").write("0")
from pathlib import Path
from unix_http import ask, raw_exchange
socket = Path(sys.argv[2])
while ask(socket, "GET", "/v1/self")[0] in (403, 429):
    time.sleep(0.1)
for line in sys.stdin:
    said = eval(line)
    while b" 429 " in (answer := raw_exchange(socket, said)).split(b"\\r\\n")[0]:
        time.sleep(0.1)
    print(answer.split(b"\\r\\n")[0].decode(), flush=True)
"""
"""Goes into the group, then sends what it is told and prints the first line of each answer."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[DaemonStage]:
    """A daemon that listens to sandboxes, and two of them, both at rest."""
    with stage_of(tmp_path) as made:
        made.configure(ACTS + f"hints: {{sandbox_socket: {tmp_path / 'inside' / 's.sock'}}}\n")
        made.start()
        for number in (1, 2):
            made.sandbox(number)
        for number in (1, 2):
            made.out(number)
        yield made


def _put(path: str, body: object, extra: str = "") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"PUT {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(data)}\r\n{extra}\r\n"
    return head.encode() + data


def _words(victim: str) -> list[bytes]:
    """What a sandbox may try in order to wake another one."""
    wake = {"phase": "running"}
    again = _put("/v1/phase", wake)
    escaped = victim.replace("-", "%2d")
    return [
        *(_put(f"/v1/sandboxes/{name}/phase", wake) for name in (victim, escaped, f"../{victim}")),
        _put(f"/v1/phase/../sandboxes/{victim}/phase", wake),
        _put(f"/v1/phase%2f..%2fsandboxes%2f{victim}/phase", wake),
        _put(f"/v1/phase?sandbox={victim}", wake),
        _put(f"/v1/phase#{victim}", wake),
        *(_put("/v1/phase", wake | {key: victim}) for key in ("sandbox", "name", "self", "pid")),
        _put("/v1/phase", {"phase": f"running\n{victim}"}),
        _put("/v1/phase", {"phase": ["running", victim]}),
        _put("/v1/phase", wake, f"X-Sandbox: {victim}\r\nHost: {victim}\r\n").replace(
            b"Content-Length: ", b"Content-Length: 0\r\nContent-Length: "
        ),
        _put(f"/v1/phase\r\nX: /v1/sandboxes/{victim}/phase", wake),
        _put("/v1/phase", b'{"phase": "running", "phase": "' + b"x" * 2**20 + b'"}'),
        _put("/" + "../" * 2**18 + victim, wake),
        _put("/v1/phase", b'{"phase": ' + b"[" * 5000),
        _put("/v1/phase", b"\xff\xfe\x00" * 100),
        again[:-4],
        f'{{"method": "hint", "params": {{"sandbox": "{victim}"}}}}\n'.encode(),
        b"\x00" * 10_000,
    ]


def _status(stage: DaemonStage, number: int) -> SandboxStatus:
    found = stage.status(stage.name(number))
    assert found is not None
    return found


def _out(stage: DaemonStage, number: int) -> tuple[int, int]:
    """Pages that are out and faults so far, as the engine has them now."""
    pid = stage.sleepers[number - 1].pid
    with stage.client() as client:
        (space,) = (space for space in client.spaces() if space.pid == pid)
        return space.pages_out, space.faults


def test_what_a_sandbox_says_reaches_no_other(stage: DaemonStage) -> None:
    """All but its own phase is refused, and the other one waits on with its pages out."""
    out = _out(stage, 2)
    procs = stage.top / stage.name(1) / "cgroup.procs"
    socket = stage.config.parent / "inside" / "s.sock"
    words = [sys.executable, "-c", _INSIDE, str(procs), str(socket), str(ROOT / "tests")]
    said = [*_words(stage.name(2)), _put("/v1/phase", {"phase": "running"})]
    lines = "".join(f"{one!r}\n" for one in said)
    done = subprocess.run(
        words, input=lines, capture_output=True, text=True, timeout=90, check=True
    )
    answers = done.stdout.splitlines()
    after = _status(stage, 2)

    assert len(said) == len(answers)
    accepted = [one[:99] for one, answer in zip(said, answers, strict=True) if " 200 " in answer]
    assert [said[-1][:99]] == accepted
    assert ("waiting_user", "hint") == (after.phase, after.phase_source)
    assert out == _out(stage, 2)
    assert "2048" == stage.sleepers[1].verify()


def test_an_operators_word_reaches_the_sandbox_of_that_very_name(stage: DaemonStage) -> None:
    """Names are compared, never resolved or matched; what is too long is said to be."""
    shapes = (
        "",
        "..",
        "../{}",
        "{}/",
        "/{}",
        "{}\n",
        "\n{}",
        "{}\0",
        "*",
        "{}*",
        "{}" + "x" * 2**20,
    )
    for shape in shapes:
        with stage.client() as client:
            with pytest.raises((NoSuchSandbox, InvalidSetting)):
                client.hint(shape.format(stage.name(2)), "running")
            assert client.ping(), shape
    assert "waiting_user" == _status(stage, 2).phase


def test_a_group_with_a_trap_for_a_name_is_itself_or_nobody(stage: DaemonStage) -> None:
    """Blanks, quotes, escapes and what is no text: no other sandbox gets the process."""
    victim = stage.name(2)
    traps = (
        f" {victim}",
        f"\\012{victim}",
        f'"{victim}',
        f"{victim}\udcff",
        f"\x1b[2J[red]{victim}",
        f"0::{victim}",
        "$(id)",
    )
    before = _status(stage, 2)
    for number, trap in enumerate(traps):
        folder = stage.top / f"{stage.name(7)}{number}{trap}"
        folder.mkdir()
        stage.sleepers.append(Sleeper(folder))
    stage.sandbox(3)
    stage.attached(3)
    strangers = {sleeper.pid for sleeper in stage.sleepers[2:-1]}

    assert before.pids == _status(stage, 2).pids
    with stage.client() as client:
        names = [one.name for one in client.sandboxes()]
        homes = [one.name for one in client.sandboxes() if strangers & set(one.pids)]
        assert strangers - {space.pid for space in client.spaces()} < strangers, homes
    assert all(map(str.isprintable, names)), names
    assert set() == set(homes) & {stage.name(number) for number in (1, 2, 3)}
    for sleeper in stage.sleepers:
        assert "2048" == sleeper.verify()

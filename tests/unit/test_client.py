"""The Python side of agent platforms, against a real control socket with a fleet behind it."""

import asyncio
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import agentzip
from agentzip import Client, Sandbox
from agentzip.control import ControlServer
from agentzip.daemon import default_run_dir
from agentzip.errors import DaemonUnreachable, InvalidSetting, NoSuchSandbox
from agentzip.testing import FakeEngine
from fake_fleet import FakeFleet


@pytest.fixture
def fleet() -> FakeFleet:
    """A host with one sandbox."""
    return FakeFleet("box")


def serve(fleet: FakeFleet, run_dir: Path) -> ControlServer:
    """A daemon's socket."""
    server = ControlServer(FakeEngine([]), run_dir, fleet=fleet)
    server.start()
    return server


@pytest.fixture
def server(fleet: FakeFleet, tmp_path: Path) -> Iterator[ControlServer]:
    """A daemon that answers."""
    found = serve(fleet, tmp_path)
    yield found
    found.close()


@pytest.fixture
def box(server: ControlServer) -> Sandbox:
    """The sandbox, as a strict client has it: nothing fails unseen."""
    return Client(server.path.parent, timeout=20, strict=True).sandbox("box")


def test_a_wait_is_told_and_ended(box: Sandbox, fleet: FakeFleet) -> None:
    """Text and seconds mean the same."""
    with box.waiting("model", expect="8s"), box.waiting("tool", expect=0.5):
        pass

    assert ["waiting_model", "waiting_tool", "waiting_model", "running"] == fleet.phases()
    assert [8.0, 0.5] == [expect_s for _, _, expect_s in fleet.heard[:2]]


def test_a_wait_is_told_from_a_task(box: Sandbox, fleet: FakeFleet) -> None:
    """`async with` does the same, for many sandboxes at once."""
    for number in range(20):
        fleet.scope_add(f"run:{number}")
        fleet.of[str(number)] = fleet.of["box"]

    async def agent(name: str) -> None:
        async with box._client.sandbox(name).waiting("user", expect="1min"):
            await asyncio.sleep(0)

    async def all_agents() -> None:
        await asyncio.gather(*(agent(str(number)) for number in range(20)))

    asyncio.run(all_agents())

    assert 40 == len(fleet.heard)
    for number in range(20):
        own = [phase for name, phase, _ in fleet.heard if name == str(number)]
        assert ["waiting_user", "running"] == own


def test_a_crowd_is_heard_one_after_the_other(
    box: Sandbox, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More hints at once than the daemon serves and queues: none is lost."""
    all_at_once = threading.Event()
    hint = fleet.hint
    monkeypatch.setattr(fleet, "hint", lambda *words: (all_at_once.wait(20), hint(*words))[1])

    async def all_agents() -> None:
        telling = [asyncio.to_thread(box.hint, "running") for _ in range(128)]
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(128))
        asyncio.get_running_loop().call_later(0.1, all_at_once.set)
        await asyncio.gather(*telling)

    asyncio.run(all_agents())

    assert 128 == len(fleet.heard)


def test_the_end_of_a_wait_reports_what_came_home(box: Sandbox) -> None:
    """`hint` says what it did."""
    box.hint("waiting_tool", 2)
    report = box.hint("running")

    assert report is not None
    assert ("waiting_tool", 7) == (report.former_phase, report.pages_in)


def test_questions_and_orders(box: Sandbox, fleet: FakeFleet) -> None:
    """Status by name, all sandboxes, and that memory stays."""
    box.finishing()
    box.pin()
    pinned = box.status()
    box.pin(pinned=False)

    assert ("finishing", True) == (pinned.phase, pinned.pinned)
    assert not box.status().pinned
    assert ["box"] == [found.name for found in box._client.sandboxes()]
    assert ["finishing"] == fleet.phases()


def test_a_client_finds_the_socket_by_folder_file_or_environment(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is told."""
    folder = server.path.parent
    monkeypatch.setenv("AGENTZIP_RUN_DIR", str(folder))

    assert folder == Client(folder).run_dir == Client(str(server.path)).run_dir == Client().run_dir
    assert 1 == len(Client().sandboxes())


def test_the_default_is_the_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named twice, because the client must not import the daemon."""
    monkeypatch.delenv("AGENTZIP_RUN_DIR", raising=False)

    assert default_run_dir() == Client().run_dir


def test_a_daemon_that_restarts_is_found_again(
    fleet: FakeFleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The program goes on while there is none, the log says so once, and then it is heard."""
    box = Client(tmp_path).sandbox("box")
    first = serve(fleet, tmp_path)
    with box.waiting("model"):
        first.close()
    with box.waiting("tool"):
        pass
    second = serve(fleet, tmp_path)
    with box.waiting("user"):
        pass
    second.close()

    assert ["waiting_model", "waiting_user", "running"] == fleet.phases()
    assert 1 == caplog.text.count("did not hear")


def test_a_daemon_that_hangs_up_is_survived(
    box: Sandbox, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is one that raises what nobody planned."""

    def broken(*_words: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(fleet, "hint", broken)
    with Client(box._client.run_dir).sandbox("box").waiting("tool"):
        done = True

    assert done


def test_who_is_strict_learns_of_it(tmp_path: Path, box: Sandbox) -> None:
    """As the class that the daemon raised."""
    with pytest.raises(NoSuchSandbox):
        box._client.sandbox("nobody").hint("done")
    with pytest.raises(DaemonUnreachable):
        Client(tmp_path / "nowhere", strict=True).sandbox("box").finishing()


def test_questions_are_answered_or_raise(tmp_path: Path, box: Sandbox) -> None:
    """There is no advice in them that could be dropped."""
    lenient = Client(tmp_path / "nowhere")
    with pytest.raises(DaemonUnreachable):
        lenient.sandboxes()
    with pytest.raises(DaemonUnreachable):
        lenient.sandbox("box").pin()
    with pytest.raises(NoSuchSandbox):
        box._client.sandbox("nobody").status()


def test_mistakes_of_the_program_are_raised_at_once(tmp_path: Path) -> None:
    """Even by a lenient client, and without a daemon."""
    box = Client(tmp_path).sandbox("box")
    with pytest.raises(InvalidSetting, match="godot"):
        box.waiting("godot")
    with pytest.raises(InvalidSetting, match="expect"):
        box.waiting("model", expect="8")
    with pytest.raises(InvalidSetting, match="asleep"):
        box.hint("asleep")
    with pytest.raises(InvalidSetting, match="timeout"):
        Client(tmp_path, timeout=0)


def test_a_fork_may_go_on_with_the_client(box: Sandbox, fleet: FakeFleet) -> None:
    """Nothing is held that two processes could share by mistake."""
    with box.waiting("user"):
        with warnings.catch_warnings():
            # Newer Pythons warn of threads that the child will not have; that is what we test.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:

                async def agent() -> None:
                    async with box.waiting("tool"):
                        pass

                asyncio.run(agent())
                code = 0
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert 0 == status
    assert ["waiting_user", "waiting_tool", "waiting_user", "running"] == fleet.phases()


def test_the_package_stays_light_until_the_client_is_used() -> None:
    """`import agentzip` brings nothing of it."""
    code = (
        "import sys, agentzip\n"
        "print([n for n in sys.modules if n.startswith('agentzip.')])\n"
        "agentzip.Client\n"
        "print('agentzip.client' in sys.modules, 'typer' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert ["[]", "True False"] == result.stdout.splitlines()
    assert {"Client", "Sandbox"} <= set(agentzip.__all__)

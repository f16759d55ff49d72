"""Signals on their way through `agentzip run`."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from agentzip.cli import signals
from agentzip.cli.signals import Relay


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A command that ends with 5 at SIGUSR1, and says when it is ready."""
    script = "trap 'exit 5' USR1 INT; echo ready; read line"
    # What was ignored at the start stays so, here and in a shell's traps; a test run in the
    # background of another shell ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    found = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert found.stdout is not None
    assert b"ready\n" == found.stdout.readline()
    yield found
    assert found.stdin is not None
    found.kill()
    found.wait()
    found.stdin.close()
    found.stdout.close()
    signal.signal(signal.SIGINT, before)


def test_a_signal_is_passed_on(child: "subprocess.Popen[bytes]") -> None:
    """What we receive, the command receives."""
    relay = Relay()
    relay.pass_on_to(child)
    os.kill(os.getpid(), signal.SIGUSR1)
    ended = relay.wait(5)
    relay.close()

    assert ended
    assert 5 == child.returncode


def test_a_signal_before_the_command_is_kept(child: "subprocess.Popen[bytes]") -> None:
    """Nothing is lost between our start and the command's."""
    relay = Relay()
    os.kill(os.getpid(), signal.SIGUSR1)
    relay.pass_on_to(child)
    ended = relay.wait(5)
    relay.close()

    assert ended
    assert 5 == child.returncode


@pytest.mark.parametrize(("foreground", "reaches"), [(True, False), (False, True)])
def test_the_keyboard_reaches_the_command_once(
    child: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
    foreground: bool,
    reaches: bool,
) -> None:
    """In the foreground the terminal has sent Ctrl-C to the command already."""
    monkeypatch.setattr(signals, "_in_foreground", lambda: foreground)
    relay = Relay()
    relay.pass_on_to(child)
    os.kill(os.getpid(), signal.SIGINT)
    ended = relay.wait(5 if reaches else 0)
    relay.close()

    assert reaches == ended


def test_the_former_handlers_come_back() -> None:
    """After the run signals mean what they meant before."""
    before = signal.getsignal(signal.SIGTERM)
    Relay().close()

    assert before == signal.getsignal(signal.SIGTERM)

"""Uniform starts, on real processes."""

import ctypes
import os
import shutil
import subprocess
import sys

import pytest

from agentzip.cli import launch
from agentzip.errors import InvalidSetting
from agentzip.uniform import START_BLOCK_BYTES, fixed_addresses, uniform_command

# What must be equal: hash order, the first stack pointer (field 28), where every mapping starts.
# Where the heap ends depends on the lengths of single texts, which the kernel does not see.
_PROGRAM = """
import re
print(hash("agent"), list({"one", "two", "three", "four"}))
print(open("/proc/self/stat").read().rsplit(")")[1].split()[25])
print(re.findall(r"^[0-9a-f]+", open("/proc/self/maps").read(), re.MULTILINE))
"""


def _start(words: list[str], environment: dict[str, str]) -> str:
    argv, env = uniform_command(words, {"PATH": os.environ["PATH"], **environment})
    with fixed_addresses():
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


def test_two_uniform_starts_are_equal() -> None:
    """Maps, stack and hashes are equal, although arguments and environment are not."""
    command = [sys.executable, "-c", _PROGRAM]
    first = _start([*command, "short"], {"TASK": "1"})
    second = _start([*command, "a much longer argument"], {"TASK": "x" * 700, "MORE": "", "B": "2"})

    assert first == second


def test_usual_starts_are_not() -> None:
    """Without it addresses and hashes differ: the test above compares something."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    }

    assert 2 == len(outputs)


def test_this_process_is_as_before() -> None:
    """The flag is only set while a process is started."""
    personality = ctypes.CDLL(None).personality
    before = personality(ctypes.c_ulong(0xFFFFFFFF))
    with fixed_addresses():
        inside = personality(ctypes.c_ulong(0xFFFFFFFF))

    assert before | 0x0040000 == inside
    assert before == personality(ctypes.c_ulong(0xFFFFFFFF))


def test_the_start_block_has_one_size() -> None:
    """Texts and pointers of arguments and environment fill a multiple of the block."""
    for length in (0, 1, 100, START_BLOCK_BYTES):
        argv, env = uniform_command(["/bin/true", "x" * length], {"HOME": "/"})
        texts = ["/bin/true", *argv, *(f"{name}={value}" for name, value in env.items())]
        taken = sum(len(text) + 1 for text in texts) + 8 * (len(argv) + len(env))

        assert 0 == taken % START_BLOCK_BYTES


def test_a_second_uniform_start_inside_keeps_the_size() -> None:
    """The padding of an outer start is replaced, not added to."""
    argv, env = uniform_command(["/bin/true"], {"HOME": "/"})

    assert (argv, env) == uniform_command(argv, env)


def test_node_gets_its_seeds() -> None:
    """Node's random numbers, which its hash seed follows, are the same in two starts."""
    if shutil.which("node") is None:
        pytest.skip("no node on this host")
    command = ["node", "-p", "Math.random() + ' ' + process.execArgv"]
    first, second = _start(command, {}), _start(command, {"LONG": "x" * 50})

    assert first == second
    assert "--hash-seed=1,--random-seed=1" in first


def test_seeds_that_were_given_stay() -> None:
    """What the command says itself wins."""
    if shutil.which("node") is None:
        pytest.skip("no node on this host")
    argv, _ = uniform_command(["node", "--hash-seed=7", "x.js"], {"PATH": os.environ["PATH"]})

    assert ["node", "--random-seed=1", "--hash-seed=7", "x.js"] == argv


def test_the_wrapper_becomes_the_command() -> None:
    """`python -m agentzip.uniform` starts it in the same way, for container entry points."""
    wrapper = [sys.executable, "-m", "agentzip.uniform", "--"]
    command = [sys.executable, "-c", _PROGRAM]
    outputs = [
        subprocess.run(
            [*wrapper, *command],
            env={"PATH": os.environ["PATH"], "TASK": "x" * length},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for length in (1, 99)
    ]

    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [([], "usage"), (["--"], "usage"), (["ls"], "usage"), (["--", "no-such-program"], "not found")],
)
def test_the_wrapper_refuses_what_is_no_command(words: list[str], message: str) -> None:
    """Bad input ends with 2 and a sentence."""
    result = subprocess.run(
        [sys.executable, "-m", "agentzip.uniform", *words],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 2 == result.returncode
    assert message in result.stderr


def test_an_empty_command_is_refused() -> None:
    """There is nothing to start."""
    with pytest.raises(InvalidSetting, match="command is empty"):
        uniform_command([])


def test_run_is_uniform_only_when_asked() -> None:
    """`agentzip run` leaves a command alone unless --uniform is given."""
    probe = "import os, sys; sys.exit(7 if 'AGENTZIP_PAD' in os.environ else 0)"
    command = [sys.executable, "-c", probe]
    codes = [launch.start(command, uniform).wait() for uniform in (False, True)]

    assert [0, 7] == codes

"""
Start processes that are as equal as can be: `agentzip run --uniform`.

Two sandboxes of one image hold much the same objects, but at other addresses and in other hash
orders, and so in pages that differ in nearly every line.  A uniform start takes these differences
away: no address randomisation, fixed hash seeds, and arguments and environment that together take
the same room on the stack.  What stays different in every process: the 16 random bytes that the
kernel puts on the stack (AT_RANDOM, which seed stack and pointer guards), its pids, its time, and
the texts of its arguments and environment themselves.

This weakens the sandboxed program's own defences, so it is never a default; docs/uniform.md says
what is given up.

Two ways to use it: `uniform_command` with `fixed_addresses` around the start of a process, or
`python -m agentzip.uniform -- COMMAND`, which becomes the command, for container entry points.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence

from agentzip.errors import AgentZipError, InvalidSetting, NotPermitted

__all__ = ["START_BLOCK_BYTES", "fixed_addresses", "main", "uniform_command"]

START_BLOCK_BYTES = 8 * 1024
"""
Room on the stack for arguments and environment; a larger need is rounded up to a multiple of it.

Environments of containers are mostly below it.  Two sandboxes are equal only when both fall into
the same multiple.  Not larger, because argument and environment pages are never paged out: every
process keeps these bytes resident.
"""

_PAD = "AGENTZIP_PAD"
"""The one variable that fills the block up."""

_SEED = "1"
"""Any fixed number but 0, which V8 reads as "choose one"."""

_NODE_OPTIONS = (f"--hash-seed={_SEED}", f"--random-seed={_SEED}")

_NODE_NAMES = {"node", "nodejs"}

_ADDR_NO_RANDOMIZE = 0x0040000
_PERSONALITY_QUERY = 0xFFFFFFFF

_POINTER_BYTES = 8


def uniform_command(
    argv: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[list[str], dict[str, str]]:
    """
    The command and environment of a uniform start.

    Addresses are not part of it: start the command inside `fixed_addresses`.

    Args:
        argv: The command; for Node its seeds are put behind the program, because V8's options are
            refused in NODE_OPTIONS.
        env: Environment; None means that of this process.

    Raises:
        InvalidSetting: there is no command.
    """
    if not argv:
        raise InvalidSetting("command is empty", "name what to run")
    environment = dict(os.environ if env is None else env)
    environment["PYTHONHASHSEED"] = "0"
    environment.pop(_PAD, None)
    program = shutil.which(argv[0], path=environment.get("PATH")) or argv[0]
    words = list(argv)
    # Scripts that Node runs through their `#!` line are not covered, neither are its children.
    if os.path.basename(os.path.realpath(program)) in _NODE_NAMES:
        words[1:1] = [option for option in _NODE_OPTIONS if not _is_given(option, argv)]
    environment[_PAD] = "x" * _padding(program, words, environment)
    return words, environment


def _is_given(option: str, argv: Sequence[str]) -> bool:
    name = option.partition("=")[0]
    return any(word == name or word.startswith(f"{name}=") for word in argv[1:])


def _padding(program: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """
    How long the padding must be for the first stack pointer to be the same everywhere.

    The kernel lays out, downwards: the program's path, the environment's texts, the arguments'
    texts, then a pointer to each of them.
    """
    texts = [program, *argv, *(f"{name}={value}" for name, value in env.items()), f"{_PAD}="]
    taken = sum(len(os.fsencode(text)) + 1 for text in texts)
    taken += _POINTER_BYTES * (len(argv) + len(env) + 1)
    return -taken % START_BLOCK_BYTES


@contextlib.contextmanager
def fixed_addresses() -> Iterator[None]:
    """
    Processes that this thread starts meanwhile have no address randomisation.

    The kernel keeps the flag per thread and hands it on at fork and exec, so neither a wrapper
    process nor code between fork and exec is needed.  A set-user-id program drops it.

    Raises:
        NotPermitted: a seccomp filter refuses personality(2), as Docker's default one does.
    """
    former = _personality(_PERSONALITY_QUERY)
    _personality(former | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        _personality(former)


def _personality(value: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    former = int(libc.personality(ctypes.c_ulong(value)))
    if former == -1:
        code = ctypes.get_errno()
        raise NotPermitted(
            f"personality(2) is refused: {errno.errorcode.get(code, str(code))}",
            "start the container's first process with it from outside, or allow personality "
            "0x40000 in the container's seccomp profile",
        )
    return former


def main(arguments: list[str] | None = None) -> int:
    """
    Become the command behind `--`; returns only if that fails.

    Args:
        arguments: Words of the command line; None means those of this process.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] != "--" or len(words) == 1:
        sys.stderr.write("usage: python -m agentzip.uniform -- COMMAND [ARGUMENT]...\n")
        return 2
    try:
        argv, environment = uniform_command(words[1:])
        program = shutil.which(argv[0])
        if program is None:
            raise InvalidSetting(
                f"command is not found: {argv[0]!r}", "give its path, or install it"
            )
        with fixed_addresses():
            os.execve(program, argv, environment)  # noqa: S606  (there is no shell in between)
    except AgentZipError as error:
        hint = f"\nhint: {error.hint}\n" if error.hint else ""
        sys.stderr.write(f"error: {error}\n{hint}")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"error: command cannot be started: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())

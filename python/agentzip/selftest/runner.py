"""
Runs checks, each in a process of its own with a limit on its time.

A check that hangs, crashes in the native core or leaves something behind must not take the run
with it: the child is ended, and whatever it left (targets, a keeper) is found, ended and reported.
Orphans are caught because the runner declares itself their reaper while it works.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from agentzip.host import processes
from agentzip.selftest.build import BIN_VARIABLE, ensure_built
from agentzip.selftest.registry import (
    COUNTS,
    SUITES,
    TIER_VARIABLE,
    Check,
    CheckSkipped,
    Result,
    all_checks,
    variables_of,
)

__all__ = ["Progress", "run", "run_one"]

Progress = Callable[[int, int, str], None]
"""Called with the number of checks done, of all, and the name of the one that starts now."""

_SET_CHILD_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""

_GRACE_SECONDS = 2.0
"""How long processes of a finished check may take to end by themselves."""

_TIER_PATIENCE = 3.0
"""So many times as long may a check take whose every page out goes on into a tier."""


def run(
    suites: Sequence[str] = SUITES,
    progress: Progress | None = None,
    *,
    tier: str | None = None,
    counts: Mapping[str, int] | None = None,
) -> list[Result]:
    """
    Run all checks of some suites on this host.

    Args:
        suites: Any of `SUITES` and `LONG_SUITES`.
        progress: Told before each check and once at the end.
        tier: One of `TIERS`, for everything that a check pages out; the crash suite has its own.
        counts: How often checks do things, where it is not as in `COUNTS`.
    """
    chosen = all_checks(suites)
    results = []
    for done, found in enumerate(chosen):
        if progress:
            progress(done, len(chosen), found.name)
        results.append(run_one(found, tier=tier, counts=counts))
    if progress:
        progress(len(chosen), len(chosen), "")
    return results


def run_one(
    found: Check, *, tier: str | None = None, counts: Mapping[str, int] | None = None
) -> Result:
    """Run one check in a child process and clean up behind it."""
    told = {**COUNTS, **(counts or {})}
    started = time.monotonic()
    try:
        folder = ensure_built()
    except CheckSkipped as reason:
        return Result(found.name, found.suite, True, skipped_reason=str(reason))
    with _reaper() as known, _scratch() as scratch:
        outcome = _run_child(
            found,
            {
                BIN_VARIABLE: str(folder),
                TIER_VARIABLE: tier or "",
                **variables_of(told),
                "TMPDIR": scratch,
            },
            _seconds_max(found, told) * (_TIER_PATIENCE if tier else 1),
        )
        left = _end_leftovers(known)
    seconds = round(time.monotonic() - started, 2)
    passed, skipped, detail = outcome
    if left and passed:
        passed, detail = False, f"left running: {left}; {detail}".rstrip("; ")
    return Result(found.name, found.suite, passed, skipped, detail, seconds)


def _seconds_max(found: Check, counts: Mapping[str, int]) -> float:
    count, seconds = found.each
    return found.seconds_max + (seconds * counts[count] if count else 0)


def _run_child(
    found: Check, variables: dict[str, str], seconds_max: float
) -> tuple[bool, str, str]:
    """Whether it passed, why it was skipped, and the detail."""
    child = subprocess.Popen(
        [
            *(sys.executable, "-X", "faulthandler", "-m", "agentzip.selftest", found.name),
            *([found.source] if found.source else []),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
        text=True,
    )
    try:
        output, errors = child.communicate(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        # SIGABRT makes the fault handler print where each Python thread is.
        child.send_signal(signal.SIGABRT)
        try:
            output, errors = child.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            output, errors = child.communicate()
        return False, "", f"no result within {seconds_max:g} s\n{errors[-3000:]}"
    for line in reversed(output.splitlines()):
        with suppress(ValueError, KeyError, TypeError):
            result = json.loads(line)
            return bool(result["passed"]), str(result["skipped"]), str(result["detail"])
    return False, "", f"ended with {child.returncode} and no result\n{errors[-3000:]}"


@contextmanager
def _scratch() -> Iterator[str]:
    """A folder for everything that the check writes, gone afterwards even if the check was."""
    with tempfile.TemporaryDirectory(
        prefix="agentzip-selftest-", ignore_cleanup_errors=True
    ) as folder:
        # Targets of other users must reach their program in it.
        os.chmod(folder, 0o755)  # noqa: S103 - nothing secret is in there
        yield folder


@contextmanager
def _reaper() -> Iterator[set[int]]:
    """Become the parent of orphans; yields the processes that were there before."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield {found.pid for found in processes.descendants(os.getpid())}
    finally:
        prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _end_leftovers(known: set[int]) -> str:
    """End whatever is new below us and still runs; returns what that was."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := _living(known)) and time.monotonic() < deadline:
        time.sleep(0.02)
    text = ", ".join(f"{found.pid} ({found.command[:60]})" for found in left)
    for found in left:
        with suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGKILL)
    deadline = time.monotonic() + _GRACE_SECONDS
    while _living(known) and time.monotonic() < deadline:
        time.sleep(0.02)
    return text


def _living(known: set[int]) -> list[processes.ProcessInfo]:
    """New processes below us that are not dead; dead children of ours are reaped on the way."""
    living = []
    for found in processes.descendants(os.getpid()):
        if found.pid in known:
            continue
        if found.state == "Z":
            if found.parent == os.getpid():
                with suppress(ChildProcessError):
                    os.waitpid(found.pid, os.WNOHANG)
        else:
            living.append(found)
    return living

"""
Exactness with programs that nobody wrote for us: CPython, Node, and confined processes.
"""

import shutil
import sys
import time

from agentzip.selftest.build import SOURCES
from agentzip.selftest.exact_memory import expect
from agentzip.selftest.registry import CheckSkipped, check
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

__all__ = ["start_heap"]


def start_heap(stage: Stage, seed: int = 1) -> Target:
    """Start the Python target."""
    return stage.start(sys.executable, str(SOURCES / "heap.py"), str(seed))


@check("exact/cpython")
def cpython(stage: Stage) -> None:
    """A Python program's data are the same after every page out, and it works on."""
    stage.open(algorithm="zstd")
    target = start_heap(stage)
    digest = target.verify()
    stage.attach(target, "when asked")
    for _ in range(3):
        report = stage.page_out(target)
        expect(report.pages_stored > 1000, f"too little left: {report}")
        expect(target.verify() == digest, "the digest differs")
        stage.page_out(target)
        digest = target.ok("work")
        expect(target.verify() == digest, "the digest differs after work")
    stage.note(f"{report.bytes_logical} bytes in {report.bytes_stored}")


@check("exact/cpython-threads")
def cpython_threads(stage: Stage) -> None:
    """Ten busy Python threads see no wrong byte while everything is paged out."""
    target = start_heap(stage)
    target.ok("threads 10")
    stage.attach(target, "when asked")
    deadline = time.monotonic() + 6
    passes = 0
    while time.monotonic() < deadline:
        stage.page_out(target)
        passes += 1
    target.ok("stop-threads", 60)
    stage.note(f"{passes} page outs")


@check("exact/cpython-fork-pool")
def cpython_fork_pool(stage: Stage) -> None:
    """Forked workers compute the right digests from memory that is out."""
    target = start_heap(stage)
    digest = target.verify()
    stage.attach(target, "when asked")
    for _ in range(3):
        stage.page_out(target)
        expect(target.ok("pool", 40) == digest, "the workers see other data")
        expect(target.verify() == digest, "the parent's digest differs")


@check("exact/cpython-subprocess")
def cpython_subprocess(stage: Stage) -> None:
    """A program starts another one while its memory is out."""
    target = start_heap(stage)
    digest = target.verify()
    stage.attach(target, "when asked")
    for _ in range(5):
        stage.page_out(target)
        expect(target.ok("subprocess") == "42", "the other program failed")
    expect(target.verify() == digest, "the digest differs")


@check("exact/node")
def node(stage: Stage) -> None:
    """A Node program's objects are the same after every page out, and its timers run on."""
    program = shutil.which("node")
    if program is None:
        raise CheckSkipped("no node on this host")
    target = stage.start(program, str(SOURCES / "heap.js"), "7")
    digest = target.verify()
    stage.attach(target, "always")
    for _ in range(3):
        report = stage.page_out(target)
        expect(report.pages_stored > 1000, f"too little left: {report}")
        expect(target.verify() == digest, "the digest differs")
        stage.page_out(target)
        digest = target.ok("work")
    before = int(target.ok("timers"))
    for _ in range(20):
        stage.page_out(target)
        time.sleep(0.02)
    expect(int(target.ok("timers")) > before, "the timers stand still")


def _confined(stage: Stage, *options: str) -> None:
    wrap, memory = stage.program("seccomp_wrap"), stage.program("memory")
    target = stage.start(wrap, *options, memory, "16", "3")
    stage.attach(target)
    for _ in range(3):
        report = stage.page_out(target)
        expect(report.pages_stored > 3500, f"too little left: {report}")
        target.verify()
        target.ok("fork-verify")


@check("exact/unprivileged")
def unprivileged(stage: Stage) -> None:
    """A process of an unprivileged user is served like any other."""
    wrap, memory = shutil.which("setpriv"), stage.program("memory")
    if wrap is None:
        raise CheckSkipped("no setpriv (util-linux) on this host")
    user = ("--reuid=65534", "--regid=65534", "--clear-groups")
    target = stage.start(wrap, *user, memory, "16", "3")
    stage.attach(target)
    for _ in range(3):
        report = stage.page_out(target)
        expect(report.pages_stored > 3500, f"too little left: {report}")
        target.verify()


@check("exact/seccomp-kill")
def seccomp_kill(stage: Stage) -> None:
    """A filter that kills on every call a pager might inject does not kill."""
    _confined(stage, "kill", "--no-new-privs")


@check("exact/seccomp-errno-unprivileged")
def seccomp_errno(stage: Stage) -> None:
    """An unprivileged process behind a filter that refuses those calls is served."""
    _confined(stage, "errno", "--no-new-privs", "--nobody")

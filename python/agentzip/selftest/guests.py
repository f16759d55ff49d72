"""
Other people's test suites: they end the same whether or not their memory is taken from them.

Each module of CPython's own regression tests is a check, and so is a script of Node's core parts.
It runs plainly, then under page outs of everything (`guest_runs`), and how every single test ended
is compared.  A test that assumes how long something takes may differ; those are named, with the
assumption, in `TIMING`, and a difference anywhere else is a failure.
"""

import shutil
import subprocess
import zlib
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree as ET

from agentzip.selftest.build import SOURCES
from agentzip.selftest.exact_memory import expect
from agentzip.selftest.guest_runs import Ending, interpreter, run_paged, run_plainly
from agentzip.selftest.registry import CheckSkipped, add, check
from agentzip.selftest.stage import Stage

__all__ = ["MODULES", "TIMING", "differences", "node_outcomes", "python_outcomes"]

MODULES = (
    *("test_array", "test_asyncgen", "test_asyncio.test_base_events"),
    *("test_asyncio.test_buffered_proto", "test_asyncio.test_context"),
    *("test_asyncio.test_events", "test_asyncio.test_futures", "test_asyncio.test_locks"),
    *("test_asyncio.test_queues", "test_asyncio.test_runners"),
    *("test_asyncio.test_selector_events", "test_asyncio.test_sendfile"),
    *("test_asyncio.test_server", "test_asyncio.test_sock_lowlevel", "test_asyncio.test_ssl"),
    *("test_asyncio.test_sslproto", "test_asyncio.test_streams"),
    *("test_asyncio.test_subprocess", "test_asyncio.test_taskgroups"),
    *("test_asyncio.test_tasks", "test_asyncio.test_threads", "test_asyncio.test_timeouts"),
    *("test_asyncio.test_transports", "test_asyncio.test_unix_events"),
    *("test_asyncio.test_waitfor", "test_buffer", "test_bufio", "test_bytes", "test_bz2"),
    *("test_cmd_line", "test_collections", "test_compile", "test_context", "test_contextlib"),
    *("test_copy", "test_coroutines", "test_csv", "test_ctypes", "test_dataclasses"),
    *("test_datetime", "test_dbm", "test_decimal", "test_deque", "test_dict", "test_eintr"),
    *("test_enum", "test_epoll", "test_exception_group", "test_exceptions"),
    *("test_faulthandler", "test_fcntl", "test_file", "test_fileio", "test_float"),
    *("test_fork1", "test_ftplib", "test_functools", "test_gc", "test_generators", "test_gzip"),
    *("test_hashlib", "test_heapq", "test_httplib", "test_httpservers", "test_imaplib"),
    *("test_io", "test_itertools", "test_json", "test_list", "test_logging", "test_long"),
    *("test_lzma", "test_mailbox", "test_marshal", "test_math", "test_memoryview", "test_mmap"),
    *("test_optparse", "test_os", "test_pathlib", "test_pickle", "test_pickletools"),
    *("test_poll", "test_popen", "test_posix", "test_pty", "test_queue", "test_random"),
    *("test_re", "test_repl", "test_resource", "test_sched", "test_select", "test_selectors"),
    *("test_set", "test_shelve", "test_shutil", "test_signal", "test_socket", "test_sort"),
    *("test_sqlite3", "test_ssl", "test_stat", "test_statistics", "test_struct"),
    *("test_subprocess", "test_sys", "test_tarfile", "test_tempfile", "test_thread"),
    *("test_threadedtempfile", "test_threading", "test_threading_local", "test_time"),
    *("test_tracemalloc", "test_typing", "test_unicode", "test_urllib"),
    *("test_urllib2_localnet", "test_uuid", "test_wait3", "test_wait4", "test_weakref"),
    *("test_xml_etree", "test_zipfile", "test_zlib", "test_workers_fork", "test_workers_spawn"),
)
"""
Modules of CPython's suite that pass unattended and say something about memory, processes or time.

The last two are ours: they start the suite's common tests of multiprocessing, for which some
distributions leave out the modules; those of `forkserver` hang here when left alone.
"""

_LEFT_OUT = {"test_socket": ("*VSOCK*",)}
"""
Module -> patterns of tests in it that hang on some hosts when left alone.

VSOCK: a virtual machine connects to its own address, which not every hypervisor brings back to it.
"""

_OWN_MODULES = SOURCES / "cpython"

TIMING: dict[str, str] = {}
"""Test -> what it assumes about time, which a program whose pages are away may not keep."""

_SECONDS_MAX = 600.0
"""One module, once; the longest of them takes a minute when left alone on a quiet machine."""

_HANG_SECONDS = 570
"""A module that takes longer prints where its threads are, and its run ends."""

_PAGED_RUNS_MAX = 3
"""So often is a module run until something was paged out: some take half a second."""

_EXCERPT_CHARACTERS = 3000

Outcomes = Counter[tuple[str, str]]
"""How often a test of this name ended like this: doctests and tests made in loops share names."""


def python_outcomes(report: Path, ending: Ending) -> Outcomes:
    """What the XML report of `python -m test` says of each test; the exit code is one of them."""
    found: Outcomes = Counter({("exit code", str(ending.exit_code)): 1})
    if not report.exists():
        return found
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our child
        kinds = {part.tag for part in case} & {"error", "failure", "skipped", "output"}
        found[case.get("name", ""), " ".join(sorted(kinds)) or "passed"] += 1
    return found


def node_outcomes(ending: Ending) -> Outcomes:
    """What the Node script says of each test, one line for each; the exit code is one of them."""
    found: Outcomes = Counter({("exit code", str(ending.exit_code)): 1})
    for line in ending.output.splitlines():
        kind, _, name = line.partition(": ")
        found[name, kind] += 1
    return found


def differences(plain: Outcomes, paged: Outcomes) -> tuple[list[str], list[str]]:
    """
    Compare how the tests of two runs ended.

    Returns:
        Differences that nothing explains; names of tests in `TIMING` that ended differently.
    """
    names = {name for name, _ in (plain - paged) + (paged - plain)}
    explained = sorted(names & set(TIMING))
    unexplained = names - set(explained)
    # A test that failed takes the exit code with it; that is no difference of its own.
    if explained and not unexplained - {"exit code"}:
        unexplained.clear()
    texts = [
        f"{name}: {_kinds(plain, name)} became {_kinds(paged, name)}"
        for name in sorted(unexplained)
    ]
    return texts, explained


def _kinds(outcomes: Outcomes, name: str) -> str:
    found = sorted(f"{kind} x{count}" for (n, kind), count in outcomes.items() if n == name)
    return ", ".join(found) or "not run"


def _compare(
    stage: Stage,
    name: str,
    arguments: Callable[[str], list[str]],
    read: Callable[[str, Ending], Outcomes],
) -> None:
    """Run a program twice and compare; both functions are told the name of the run."""
    plain = run_plainly(arguments("plain"), stage.folder, _SECONDS_MAX)
    seed = zlib.crc32(name.encode())
    for attempt in range(_PAGED_RUNS_MAX):
        paged, done = run_paged(
            *(stage.engine, arguments("paged"), stage.folder, _SECONDS_MAX), seed + attempt
        )
        if done.pages_moved:
            break
    expected, actual = read("plain", plain), read("paged", paged)
    unexplained, explained = differences(expected, actual)
    tests = sum(expected.values()) - 1
    stage.note(f"{tests} tests, {plain.seconds:.1f} s -> {paged.seconds:.1f} s; {done}")
    if explained:
        stage.note("timing: " + ", ".join(explained))
    expect(
        not unexplained,
        "; ".join(unexplained[:8]) + "\n" + paged.output[-_EXCERPT_CHARACTERS:],
    )
    expect(sum(expected.values()) > 1, f"no test ran: {plain.output[-_EXCERPT_CHARACTERS:]}")
    expect(done.pages_moved > 0, f"nothing was paged out: {done}")


def _python_module(module: str, stage: Stage) -> None:
    own = (_OWN_MODULES / f"{module}.py").exists()
    if not own and not _has_module(module):
        raise CheckSkipped(f"this Python ({interpreter()}) has no {module}")

    def report(run: str) -> Path:
        return stage.folder / f"{run}.xml"

    def arguments(run: str) -> list[str]:
        return [
            *(interpreter(), "-m", "test", "--timeout", str(_HANG_SECONDS)),
            *("--junit-xml", str(report(run)), "--tempdir", str(stage.folder)),
            *(("--testdir", str(_OWN_MODULES)) if own else ()),
            *(word for pattern in _LEFT_OUT.get(module, ()) for word in ("--ignore", pattern)),
            module,
        ]

    _compare(stage, module, arguments, lambda run, ending: python_outcomes(report(run), ending))


@cache
def _has_module(module: str) -> bool:
    asked = f"import importlib.util as u; raise SystemExit(not u.find_spec('test.{module}'))"
    found = subprocess.run([interpreter(), "-c", asked], stderr=subprocess.DEVNULL, check=False)
    return found.returncode == 0


for _module in MODULES:
    add(
        f"guests/{_module}",
        f"CPython's {_module} ends the same while everything is paged out.",
        partial(_python_module, _module),
        2 * _SECONDS_MAX,
    )


@check("guests/node", 2 * _SECONDS_MAX)
def node(stage: Stage) -> None:
    """Node's workers, children, streams and shared memory work the same."""
    program = shutil.which("node")
    if program is None:
        raise CheckSkipped("no node on this host")
    command = [program, "--expose-gc", str(SOURCES / "node_core.js")]
    _compare(stage, "node", lambda _run: command, lambda _run, ending: node_outcomes(ending))

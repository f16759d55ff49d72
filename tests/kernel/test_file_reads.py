"""Reads of real processes, seen by the kernel's tracing or by the positions of descriptors."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentzip.errors import Unsupported
from agentzip.host.tracing import FileRead, FileTracing, reads_in
from agentzip.policy.readahead import Ask
from agentzip.readahead import PositionSource, ReadAhead, Source, TraceSource

pytestmark = pytest.mark.kernel

_READER = """
import os, sys, time
sys.stdin.readline()
file = os.open(sys.argv[1], os.O_RDONLY)
while os.read(file, 16384):
    time.sleep(0.002)
sys.stdout.write("done\\n")
sys.stdout.flush()
sys.stdin.readline()
"""


@pytest.fixture
def reader(tmp_path: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that waits for a line, then reads a file of 256 pages."""
    path = tmp_path / "0f3a9c"
    path.write_bytes(os.urandom(1 << 20))
    process = subprocess.Popen(
        [sys.executable, "-c", _READER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()


def _source(kind: Callable[[], Source]) -> Source:
    try:
        return kind()
    except Unsupported as error:
        pytest.skip(str(error))


def _go(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()


@pytest.mark.parametrize("kind", [TraceSource, PositionSource])
def test_reads_of_a_process_are_seen_and_only_of_it(
    kind: Callable[[], Source], reader: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """Both sources tell of the whole file."""
    inode = (tmp_path / "0f3a9c").stat().st_ino
    source = _source(kind)
    try:
        source.watch([reader.pid])
        _go(reader)
        pages: set[int] = set()
        threads: set[int] = set()
        end = time.monotonic() + 20
        while time.monotonic() < end and len(pages) < 250:
            for read in source.take(0.2):
                threads.add(read.thread)
                if read.inode == inode:
                    pages.update(range(read.start, read.end))
    finally:
        source.close()
    assert {reader.pid} == threads
    assert len(pages) >= 250


def test_many_threads_are_named_at_once_and_one_that_has_ended_does_no_harm() -> None:
    """The kernel waits for every processor once, not once a thread."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    try:
        tracing = FileTracing()
    except Unsupported as error:
        pytest.skip(str(error))
    with tracing:
        tracing.watch([ended.pid, *range(20_000, 21_000)])
        tracing.watch([])
        file = f"/proc/self/fd/{tracing._root}/{tracing._name}/set_event_pid"
        named = {int(word) for word in Path(file).read_text().split()}

    # The kernel takes out who ends meanwhile, and numbers of that range may be in use.
    assert os.getpid() in named
    assert len(named & set(range(20_000, 21_000))) > 900


def test_tracing_leaves_nothing_behind_and_removes_what_a_killed_one_left() -> None:
    """Rings of a killed one are kernel memory for good."""
    code = """
import os, signal
from agentzip.host.tracing import FileTracing
tracing = FileTracing()
name = f"agentzip-reads-{os.getpid()}"
print(name in os.listdir(f"/proc/self/fd/{tracing._root}/instances"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    try:
        FileTracing().close()
    except Unsupported as error:
        pytest.skip(str(error))
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    output, _ = killed.communicate()
    assert (b"True\n", -9) == (output, killed.returncode)

    # Others trace meanwhile: only what carries these two numbers is ours.
    with FileTracing() as next_one:
        instances = f"/proc/self/fd/{next_one._root}/instances"
        assert f"agentzip-reads-{os.getpid()}" in os.listdir(instances)
        assert f"agentzip-reads-{killed.pid}" not in os.listdir(instances)


def test_a_run_is_in_the_cache_before_it_is_read(
    reader: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    """And nothing beyond the end of the file is asked for."""
    asks: list[Ask] = []
    inode = (tmp_path / "0f3a9c").stat().st_ino
    ahead = ReadAhead(_source(TraceSource), told=asks.append)
    ahead.watch([reader.pid])
    ahead.start()
    try:
        time.sleep(0.5)
        _go(reader)
        assert reader.stdout is not None
        reader.stdout.readline()
        time.sleep(0.3)
    finally:
        ahead.close()
    pages = {page for ask in asks if ask.file.inode == inode for page in range(ask.start, ask.end)}
    assert len(pages) >= 200
    assert max(pages) <= 255


def test_a_line_of_the_kernel_is_read_whole() -> None:
    """As this kernel prints it."""
    line = (
        b"          python-4711    [001] .....  6123.123456: mm_filemap_get_pages: "
        b"dev=254:0 ino=9b3fbc ofs=16384-32767"
    )
    assert [FileRead(4711, os.makedev(254, 0), 0x9B3FBC, 4, 8)] == reads_in(line)

"""What leaving a `with` block ends, and what it leaves alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentzip.children import Child
from agentzip.compiler import build_programs
from agentzip.errors import InternalError, Unsupported

_WAIT = "import sys; sys.stdin.read()"


def _child() -> Child:
    pipe = subprocess.PIPE
    return Child(subprocess.Popen([sys.executable, "-c", _WAIT], stdin=pipe, stdout=pipe))


def test_leaving_the_block_ends_the_child_and_closes_its_pipes() -> None:
    """It may be ended twice."""
    with _child() as child:
        assert child.alive()
    child.stop()

    assert not child.alive()
    assert child.process.stdin is not None
    assert child.process.stdin.closed


def test_a_child_that_ended_by_itself_is_not_signalled() -> None:
    """Its exit code stays what it was: nobody else with its number can be meant."""
    with _child() as child:
        child.process.communicate(timeout=20)
    assert 0 == child.process.returncode


def test_a_program_is_compiled_once_and_again_when_its_source_is_newer(tmp_path: Path) -> None:
    """What is fresh is not touched; a header that changed makes it stale."""
    (tmp_path / "one.c").write_text('#include "one.h"\nint main(void) { return CODE; }\n')
    (tmp_path / "one.h").write_text("#define CODE 3\n")
    program = build_programs(tmp_path, {"one": ["one.c"]}) / "one"
    made = program.stat().st_mtime_ns
    build_programs(tmp_path, {"one": ["one.c"]})
    assert made == program.stat().st_mtime_ns
    assert 3 == subprocess.run([program], check=False).returncode

    (tmp_path / "one.h").write_text("#define CODE 4\n")
    build_programs(tmp_path, {"one": ["one.c"]})
    assert 4 == subprocess.run([program], check=False).returncode


def test_a_source_that_is_no_c_is_a_bug_of_ours(tmp_path: Path) -> None:
    """The compiler's message is passed on, and no half of a program is left."""
    (tmp_path / "bad.c").write_text("int main(void) { return nonsense; }\n")
    with pytest.raises(InternalError, match="nonsense"):
        build_programs(tmp_path, {"bad": ["bad.c"]})
    assert [] == list((tmp_path / "bin").iterdir())


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what could not be built; a full set of old programs is good enough."""
    (tmp_path / "one.c").write_text("int main(void) { return 0; }\n")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unsupported, match="one"):
        build_programs(tmp_path, {"one": ["one.c"]})
    (tmp_path / "bin" / "one").touch()
    assert tmp_path / "bin" == build_programs(tmp_path, {"one": ["one.c"]})

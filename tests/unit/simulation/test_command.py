"""`agentzip simulate` from end to end, on the kept profile of a real run."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentzip.cli import main

SMALL = ["--host-memory", "3GiB", "--cores", "2", "--turns", "2", "--sandboxes", "24"]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The JSON object that a command prints."""
    code = main([*words, "--json"])
    out = capsys.readouterr()
    assert (0, "") == (code, out.err)
    return json.loads(out.out)


def test_a_fleet_is_told_in_every_mode(kept_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hosts, memory, wakes and turns; fewer hosts with us; the same again for the same seed."""
    words = ["simulate", "--from", str(kept_file), *SMALL, "--mode", "none,prefetch,full"]
    found = told(capsys, *words)
    none, prefetch, full = found["fleets"]

    assert ["none", "prefetch", "full"] == [one["mode"] for one in found["fleets"]]
    assert none["hosts"] >= full["hosts"]
    assert none["hosts"] > prefetch["hosts"]
    names = {"p50", "p95", "p99", "mean"}
    for one in found["fleets"]:
        simulated = one["simulated"]
        assert names == set(simulated["wake_ms"]) == set(simulated["turn_s"])
        assert 0 < simulated["mean_bytes"] <= simulated["peak_bytes"]
        assert simulated["peak_bytes"] <= found["host"]["memory_bytes"]
        assert set(found["meanings"]) <= {*one, *simulated}
    assert found == told(capsys, *words)
    assert found != told(capsys, *words, "--seed", "2")


def test_the_table_names_every_fleet(kept_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row for each number and mode, and what stood against a denser packing."""
    assert 0 == main(["simulate", "--from", str(kept_file), *SMALL[:-1], "10,20", "--storm", "50"])
    text = capsys.readouterr().out
    for name in ("10 none", "10 full", "20 none", "20 full", "storm P99"):
        assert name in text


def test_a_bound_that_cannot_be_kept_is_told(
    kept_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no row of figures then, but a reason."""
    words = ["simulate", "--from", str(kept_file), *SMALL, "--wake-p99", "1ms", "--mode", "full"]
    assert 0 == main([*words, "--sandboxes", "3"])
    assert "no number of hosts keeps the bounds" in capsys.readouterr().out


def test_workloads_are_mixed(kept_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files are two kinds of sandbox, as many of each."""
    words = ["simulate", *["--from", str(kept_file)] * 2, *SMALL, "--mode", "prefetch"]
    found = told(capsys, *words)
    assert 2 == len(found["profiles"])
    assert 24 == found["fleets"][0]["sandboxes"]


def test_a_validation_tells_each_error(kept_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, and as JSON."""
    words = ["simulate", "--from", str(kept_file), "--validate", str(kept_file)]
    found = told(capsys, *words)
    assert {"none", "encode", "prefetch", "full"} == {one["mode"] for one in found["compared"]}
    assert {"mode", "figure", "real", "simulated", "error_percent"} == set(found["compared"][0])
    assert 0 == main(words)
    text = capsys.readouterr().out
    assert "full: turn P99" in text
    assert "%" in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--from", "/nowhere.json"], "from cannot be read"),
        (["--from", __file__], "from is not JSON"),
        (["--sandboxes", "few"], "sandboxes"),
        (["--sandboxes", "0"], "sandboxes"),
        (["--sandboxes", ","], "sandboxes"),
        (["--mode", "zram"], "mode cannot be simulated: zram"),
        (["--mode", ","], "mode cannot be simulated"),
        (["--host-memory", "64"], "host-memory"),
        (["--host-memory", "256MiB"], "host-memory is too small"),
        (["--host-memory", "1GiB"], "reserve is all of the host's memory"),
        (["--pool-size", "lots"], "pool-size"),
        (["--think", "long"], "think"),
        (["--think", "0s"], "think"),
        (["--turn-p99", "0ms"], "turn-p99"),
        (["--latency-target", "-1s"], "latency-target"),
        (["--cores", "0"], "--cores"),
        (["--turns", "1"], "--turns"),
        (["--storm", "101"], "--storm"),
        (["--validate", "/nowhere.json"], "validate cannot be read"),
    ],
)
def test_bad_input_names_its_field(
    kept_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    """The exit code is 2, and there is a hint."""
    assert 2 == main(["simulate", "--from", str(kept_file), *words])
    out = capsys.readouterr()
    assert "" == out.out
    assert named in out.err
    assert "hint:" in out.err


def test_two_profiles_cannot_be_validated(
    kept_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One real run is one workload."""
    file = str(kept_file)
    assert 2 == main(["simulate", "--from", file, "--from", file, "--validate", file])
    assert "validate compares with one profile" in capsys.readouterr().err


def test_a_mode_that_a_profile_lacks_is_named(
    kept: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint says which modes it has."""
    file = tmp_path / "two.json"
    file.write_text(json.dumps({**kept, "modes": kept["modes"][:2]}))
    assert 2 == main(["simulate", "--from", str(file), "--mode", "full"])
    err = capsys.readouterr().err
    assert "mode is not in two.json: full" in err
    assert "none, encode" in err

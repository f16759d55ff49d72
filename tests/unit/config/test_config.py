"""The configuration: keys, checks, sources; and that no text whatsoever crashes it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentzip import config, daemon, model
from agentzip.cli import main, options
from agentzip.config.document import parse
from agentzip.config.keys import PREBUILT
from agentzip.daemon import Reloaded
from agentzip.errors import InvalidSetting
from agentzip.fleet import FleetSettings
from agentzip.policy import tiers
from fuzz_cases import cases

# The text that stands in the design, and in what users of the idea wrote before.
DESIGN = """
compression: {algorithm: zstd, level: 3, dictionary: auto, page_size: 4096,
              skip: [".jpg", ".png", ".zip", ".mp4", ".h5", ".safetensors"]}
pool: {max_size: 8GB, reclaim_threshold: 80, swap_out_path: /var/lib/agentzip/swapfile,
       defrag: true}
policy: {hot_threshold_ms: 1000, warm_threshold_ms: 10000, cold_grace_period: 30s,
         watermarks: {start: 85, stop: 70, between_percent: 10}, prefetch_window: [16, 256],
         latency_target: 20ms}
scopes:
  - {cgroup: "agent-sandbox-*.slice", enabled: true}
"""


def test_the_text_of_the_design_holds_and_is_the_default() -> None:
    """Every key of it is known, and but for swap file and scopes it says what holds anyhow."""
    told = config.load(DESIGN).config
    default = config.load("").config

    assert 3 == default.compression.effective_level == told.compression.level
    assert default.compression == told.compression.model_copy(update={"level": None})
    assert default.policy == told.policy
    assert "/var/lib/agentzip/swapfile" == told.pool.swap_out_path
    assert default.pool == told.pool.model_copy(update={"swap_out_path": None})
    assert ["scope"] == [scope.isolation for scope in told.scopes]


def test_every_value_says_where_it_comes_from() -> None:
    """Default, line of the file, or option; the option wins."""
    text = "pool:\n  max_size: 2GiB\n  defrag: false\ncompression: {level: 5}\n"
    options = {"pool.max_size": ("--pool-size", "1GiB")}
    rows = {
        key: (value, source) for key, value, source in config.load(text, "a.yaml", options).rows()
    }

    assert (2**30, "--pool-size") == rows["pool.max_size"]
    assert (False, "a.yaml:3") == rows["pool.defrag"]
    assert (5, "a.yaml:4") == rows["compression.level"]
    assert (80, "default") == rows["pool.reclaim_threshold"]
    assert "default" == rows["policy.watermarks.start"][1]


@pytest.mark.parametrize(
    ("text", "key", "value", "fix"),
    [
        ("poool: {}", "poool", "{}", "keys at the top are compression, hints, metr"),
        ("pool: {size: 1GB}", "pool.size", "'1GB'", "keys here are defrag, max_size"),
        ("pool: {max_size: 8G}", "pool.max_size", "'8G'", "write 8GB (powers of ten) or 8GiB"),
        ("pool: {max_size: 800}", "pool.max_size", "800", "write a number and a unit"),
        ("pool: {max_size: 0GB}", "pool.max_size", "'0GB'", ""),
        ("pool: {max_size: 90TB}", "pool.max_size", "'90TB'", "give a smaller size"),
        ("pool: {defrag: yes}", "pool.defrag", "'yes'", "write true or false"),
        ("pool: {reclaim_threshold: 0}", "pool.reclaim_threshold", "0", "from 1 to 100"),
        ("pool: {reclaim_threshold: 80%}", "pool.reclaim_threshold", "'80%'", "(percent)"),
        ("pool: {swap_out_path: a/b}", "pool.swap_out_path", "'a/b'", "write the whole path"),
        ("pool: {swap_out_path: /a/../b}", "pool.swap_out_path", "'/a/../b'", "without . and .."),
        ("compression: {algorithm: gzip}", "compression.algorithm", "'gzip'", "zstd, lz4, lz4hc"),
        ("compression: {level: 30}", "compression.level", "30", "from -7 to 22"),
        ("compression: {level: true}", "compression.level", "True", "from -7 to 22"),
        ("compression: {algorithm: lz4, level: 13}", "compression.level", "13", "from 0 to 12"),
        ("compression: {algorithm: lz4hc, level: 0}", "compression.level", "0", "from 1 to 12"),
        ("compression: {algorithm: raw, level: 1}", "compression.level", "1", "leave the level"),
        ("compression: {page_size: 65536}", "compression.page_size", "65536", "4096"),
        ("compression: {skip: .jpg}", "compression.skip", "'.jpg'", "write a list"),
        ("compression: {skip: [jpg]}", "compression.skip", "['jpg']", "write a list"),
        ("compression: {dictionary: py}", "compression.dictionary", "'py'", "auto, prebuilt, none"),
        ("compression: {dictionary: 'v8,v8'}", "compression.dictionary", "'v8,v8'", "names"),
        (
            "compression: {algorithm: lz4, dictionary: v8}",
            "compression.dictionary",
            "'v8'",
            "algorithm: zstd, or dictionary: none",
        ),
        ("policy: {cold_grace_period: 30}", "policy.cold_grace_period", "30", "like 30s or 20ms"),
        ("policy: {cold_grace_period: 900h}", "policy.cold_grace_period", "'900h'", "168h"),
        ("policy: {latency_target: 0ms}", "policy.latency_target", "'0ms'", "above zero"),
        ("policy: {prefetch_window: [9, 8]}", "policy.prefetch_window", "[9, 8]", "[16, 256]"),
        ("policy: {prefetch_window: 16}", "policy.prefetch_window", "16", "[16, 256]"),
        ("policy: {hot_threshold_ms: 10000}", "policy.warm_threshold_ms", "10000", "larger"),
        ("policy: {watermarks: {stop: 90}}", "policy.watermarks.stop", "90", "smaller number"),
        ("scopes: [{cgroup: a, latency_target: 5}]", "scopes.0.latency_target", "5", "30s or 20ms"),
        ("scopes: [{cgroup: a, trim: 1}]", "scopes.0.trim", "1", "write true or false"),
        ("metrics: {listen: 9477}", "metrics.listen", "9477", '"127.0.0.1:9477"'),
        ("metrics: {listen: localhost}", "metrics.listen", "'localhost'", "127.0.0.1:9477"),
        (
            "metrics: {listen: '0.0.0.0:9477'}",
            "metrics.listen",
            "'0.0.0.0:9477'",
            "this host alone",
        ),
        ("metrics: {listen: '127.0.0.1:0'}", "metrics.listen", "'127.0.0.1:0'", "127.0.0.1:9477"),
        ("metrics: {listen: '::1:9477'}", "metrics.listen", "'::1:9477'", "[::1]:9477"),
        ("hints: {sandbox_socket: a}", "hints.sandbox_socket", "'a'", "write the whole path"),
        ("state_dir: a", "state_dir", "'a'", "write the whole path"),
        ("state_dir: /", "state_dir", "'/'", "without . and .."),
        ("policy: [1]", "policy", "[1]", "write its keys indented below it"),
        ("scopes: {cgroup: a}", "scopes", "{'cgroup': 'a'}", "each entry behind a dash"),
        ("scopes: [{enabled: true}]", "scopes.0.cgroup", "{'enabled': True}", "add cgroup"),
        ("scopes: [{cgroup: '*'}]", "scopes.0.cgroup", "'*'", "agent-sandbox-*.slice"),
        ("scopes: [{cgroup: ../x}]", "scopes.0.cgroup", "'../x'", "agent-sandbox-*.slice"),
        ("scopes: [{cgroup: a}, {cgroup: a/}]", "scopes.1.cgroup", "'a/'", "one scope for each"),
        ("scopes: [{cgroup: a, isolation: tenant}]", "scopes.0.isolation", "'tenant'", "sandbox"),
        ("scopes: [{cgroup: a, pid: 3}]", "scopes.0.pid", "3", "keys here are cgroup, enabled"),
    ],
)
def test_a_wrong_value_is_named_with_its_fix(text: str, key: str, value: str, fix: str) -> None:
    """The message has line, key and value, the hint the fix."""
    with pytest.raises(InvalidSetting) as caught:
        config.load(text, "a.yaml")

    assert str(caught.value).startswith(f"a.yaml:1: {key} ")
    assert str(caught.value).endswith(f": {value}")
    assert fix in caught.value.hint
    assert 2 == caught.value.exit_code


def test_everything_wrong_is_told_at_once() -> None:
    """Nobody mends a file line by line with a restart in between."""
    found = config.problems_of("pool: {max_size: 1G}\npolicy: {x: 1}\nscopes: [3]\n")

    assert ["pool.max_size", "policy.x", "scopes.0"] == [problem.key for problem in found]
    assert [1, 2, 3] == [problem.line for problem in found]
    assert all(problem.fix for problem in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is no YAML"),
        ("a: b: c", "is no YAML"),
        ('a: "\\UFFFFFFFF"', "is no YAML"),
        ("- 1", "holds no keys: list"),
        ("text", "holds no keys: str"),
        ("pool: {}\npool: {}", "key is given twice: pool"),
        ("a: &x 1\nb: *x", "cannot hold an anchor or alias"),
        ("a: !!python/object:os.system x", "cannot hold a tag"),
        ("{a: 1}: 2", "a key that is no word"),
        ("--- {}\n--- {}", "a second document"),
        ("[" * 5000, "deeper nesting"),
        ("x" * 300_000, "too long"),
    ],
)
def test_what_a_configuration_does_not_need_is_refused(text: str, message: str) -> None:
    """Each with a sentence, and quickly."""
    with pytest.raises(InvalidSetting, match=message):
        config.load(text)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "pool:\nscopes:\n", "{}"])
def test_an_empty_configuration_is_one_of_defaults(text: str) -> None:
    """Sections without keys as well."""
    assert config.load("").config == config.load(text).config


def test_words_of_the_older_yaml_are_words() -> None:
    """`no` is a text, `12:30` no number, and quotes make a text of anything."""
    values = parse("{a: no, b: 12:30, c: '3', d: 0x10, e: 1e3, f: 1.5, g: ~}", "x").values

    assert {
        "a": "no",
        "b": "12:30",
        "c": "3",
        "d": "0x10",
        "e": "1e3",
        "f": 1.5,
        "g": None,
    } == values


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("prebuilt", "prebuilt"),
        ("'python312,v8'", ["python312", "v8"]),
        ("python312, v8", "python312"),
        ("[chromium]", ["chromium"]),
    ],
)
def test_dictionaries_are_chosen_by_word_or_name(written: str, read: object) -> None:
    """A word, names with commas, or a list."""
    if read == "python312":
        # In braces a comma ends the value: what follows is a key, and is told as one.
        with pytest.raises(InvalidSetting, match=r"compression\.v8 key is not known"):
            config.load(f"compression: {{dictionary: {written}}}")
        read = ["python312", "v8"]
        found = config.load(f"compression:\n  dictionary: {written}")
    else:
        found = config.load(f"compression: {{dictionary: {written}}}")

    assert read == found.config.compression.dictionary


def test_settings_of_the_engine_follow(tmp_path: Path) -> None:
    """Algorithm, level, pool and swap file reach the engine; lz4hc is lz4 with a level."""
    base = config.load("compression: {algorithm: lz4hc}\npool: {swap_out_path: /x/y}").config
    made = config.to_settings(base, tmp_path)
    plain = config.to_settings(config.load("").config, tmp_path)

    assert ("lz4", 9) == (made.algorithm, made.level)
    assert (Path("/x/y"), 8 * 10**9) == (made.disk_path, made.disk_bytes_max)
    assert model.Settings(run_dir=tmp_path, level=3) == plain


# ── no text crashes it ────────────────────────────────────────────────────────────────────────────
_WORDS = st.sampled_from(
    [
        *("compression", "pool", "policy", "scopes", "watermarks", "cgroup", "isolation", "level"),
        *("algorithm", "dictionary", "skip", "max_size", "swap_out_path", "prefetch_window"),
        *("int", "none", "list[str]", "a.b", "0", *PREBUILT, "zstd", "8GB", "30s", "/x", "-1"),
    ]
)
_PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | _WORDS
_VALUES = st.recursive(
    _PLAIN,
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(_WORDS | st.text(max_size=8), below, max_size=4)
    ),
    max_leaves=20,
)


def _holds_or_is_refused(text: str) -> None:
    try:
        found = config.load(text)
    except InvalidSetting:
        return
    assert isinstance(found.config, config.Config)
    json.dumps(found.rows())


@cases(300)
@given(st.text(max_size=200))
def test_any_text_holds_or_is_refused(text: str) -> None:
    """There is no traceback."""
    _holds_or_is_refused(text)


@cases(300)
@given(st.lists(st.sampled_from([*"{}[]:,-?&*!|>%@`'\"#\n \t\\U1a~.", "pool", "---", "..."])))
def test_any_pile_of_signs_holds_or_is_refused(signs: list[str]) -> None:
    """YAML's own signs in any order."""
    _holds_or_is_refused("".join(signs))


@cases(300)
@given(st.dictionaries(_WORDS, _VALUES, max_size=5))
def test_any_yaml_holds_or_is_refused(values: dict[str, Any]) -> None:
    """What is YAML, with known keys in wrong places and wrong values at known keys."""
    _holds_or_is_refused(yaml.safe_dump(values, allow_unicode=True))


_GOOD = st.fixed_dictionaries(
    {},
    optional={
        "compression": st.fixed_dictionaries(
            {},
            optional={
                "algorithm": st.just("zstd"),
                "level": st.integers(-7, 22),
                "dictionary": st.sampled_from(["auto", "none", "prebuilt", list(PREBUILT)]),
                "skip": st.lists(st.sampled_from([".jpg", ".tar.gz", ".H5"])),
            },
        ),
        "pool": st.fixed_dictionaries(
            {},
            optional={
                "max_size": st.integers(1, 10**6).map(lambda size: f"{size}MiB"),
                "reclaim_threshold": st.integers(1, 100),
                "defrag": st.booleans(),
            },
        ),
        "policy": st.fixed_dictionaries(
            {},
            optional={
                "hot_threshold_ms": st.integers(1, 9999),
                "warm_threshold_ms": st.integers(10_000, 86_400_000),
                "latency_target": st.integers(1, 1000).map(lambda time: f"{time}ms"),
            },
        ),
    },
)


@cases(150)
@given(_GOOD)
def test_what_is_right_is_taken_as_written(values: dict[str, Any]) -> None:
    """Every value in range holds, and says that it comes from the file."""
    effective = config.load(yaml.safe_dump(values), "f")
    sources = {key: source for key, _, source in effective.rows()}
    for section, keys in values.items():
        for key in keys:
            assert sources[f"{section}.{key}"].startswith("f:")


def test_an_engine_is_started_as_configured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file counts, an option wins, and a wrong file starts nothing."""
    started: list[tuple[model.Settings, tiers.Background, FleetSettings]] = []

    class Started(Exception):
        pass

    def start(
        settings: model.Settings,
        background: tiers.Background,
        fleet: FleetSettings,
        reload: Callable[[], Reloaded],
        tell_manager: Callable[[str], None],
    ) -> None:
        assert tell_manager is daemon.tell_manager
        started.append((settings, background, fleet))
        assert fleet == reload().fleet
        raise Started

    monkeypatch.setattr("agentzip.cli.launch.Daemon", start)
    file = tmp_path / "config.yaml"
    file.write_text(
        "pool: {max_size: 1GiB, defrag: false}\n"
        "compression: {level: 7, dictionary: [v8]}\n"
        "scopes: [{cgroup: x.slice, isolation: sandbox}]\n"
    )
    for more in ([], ["--level", "9"]):
        with pytest.raises(Started):
            main(["daemon", "--config", str(file), *more])
    file.write_text("pool: {max_size: 1G}\n")

    assert [(2**30, 7), (2**30, 9)] == [(one.pool_bytes_max, one.level) for one, *_ in started]
    _, background, fleet = started[0]
    assert ("v8",) == background.dictionary
    assert not background.rules.defrag
    assert [("x.slice", "sandbox")] == [(scope.cgroup, scope.isolation) for scope in fleet.scopes]
    assert 2 == main(["daemon", "--config", str(file)])
    assert "pool.max_size is ambiguous" in capsys.readouterr().err


# ── the commands ──────────────────────────────────────────────────────────────────────────────────
def test_check_says_whether_a_file_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 and a sentence, or 2 and what is wrong; with --json a list of problems."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(DESIGN)
    bad.write_text("pool: {max_size: 1G}\n")

    assert 0 == main(["config", "check", str(good)])
    assert "configuration holds" in capsys.readouterr().out
    assert 2 == main(["config", "check", str(bad)])
    assert f"{bad}:1: pool.max_size is ambiguous: '1G'" in capsys.readouterr().err
    assert 2 == main(["config", "check", str(bad), "--json"])
    output = capsys.readouterr()
    assert ["pool.max_size"] == [problem["key"] for problem in json.loads(output.out)]
    assert "InvalidSetting" == json.loads(output.err)["error"]["type"]


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a: ["])
def test_check_of_no_file_or_no_text_ends_with_two(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also as JSON there is one error, and nothing falls over."""
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)

    assert 2 == main(["config", "check", str(file)])
    assert 2 == main(["config", "check", str(file), "--json"])
    assert "error" in json.loads(capsys.readouterr().err.splitlines()[-1])


def test_show_lists_every_key_and_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table and as data."""
    file = tmp_path / "config.yaml"
    file.write_text(DESIGN)

    assert 0 == main(["config", "show", "--config", str(file), "--level", "9", "--json"])
    rows = {row["key"]: row for row in json.loads(capsys.readouterr().out)}
    assert {"key": "compression.level", "value": 9, "source": "--level"} == rows[
        "compression.level"
    ]
    assert f"{file}:4" == rows["pool.max_size"]["source"]
    assert 0 == main(["config", "show", "--config", str(file)])
    assert "policy.watermarks.start" in capsys.readouterr().out
    assert 2 == main(["config", "show", "--config", str(file), "--pool-size", "8G"])
    assert "pool.max_size is ambiguous: '8G'" in capsys.readouterr().err


def test_the_default_place_may_be_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file there, defaults hold."""
    monkeypatch.setattr("agentzip.config.loading.DEFAULT_PATH", tmp_path / "missing.yaml")

    assert config.load("").config == config.load_file().config


def test_the_commands_know_the_default_place(capsys: pytest.CaptureFixture[str]) -> None:
    """They name it without importing it; this compares."""
    main(["config", "show", "--help"])

    assert options._CONFIG == config.DEFAULT_PATH

    assert str(config.DEFAULT_PATH) in capsys.readouterr().out


def test_the_page_lists_every_key() -> None:
    """Each key stands in docs/configuration.md with its meaning as in the code."""
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    sections: dict[str, type[BaseModel]] = {
        "compression": config.Compression,
        "pool": config.Pool,
        "policy": config.Policy,
        "policy.watermarks": config.Watermarks,
        "metrics": config.Metrics,
        "hints": config.Hints,
        "scopes": config.Scope,
    }
    keys = {
        f"{section}.{name}": field
        for section, kind in sections.items()
        for name, field in kind.model_fields.items()
    } | config.Config.model_fields
    missing = [
        key
        for key, field in keys.items()
        if key not in sections
        and not _row(page, key).endswith(f"| {' '.join((field.description or '').split())} |")
    ]

    assert [] == missing


def _row(page: str, key: str) -> str:
    return page.partition(f"| `{key}` | ")[2].partition("\n")[0]

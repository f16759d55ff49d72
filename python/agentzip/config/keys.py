"""
Every key of the configuration: meaning, unit, default and reason, and its check.

A check that fails raises `unfit`, which carries the fix beside the complaint; loading.py adds the
key, the value and the line.
"""

import ipaddress
import os
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from agentzip import units
from agentzip.errors import InvalidSetting
from agentzip.policy import patterns

__all__ = [
    "PREBUILT",
    "Compression",
    "Config",
    "Hints",
    "Metrics",
    "Policy",
    "Pool",
    "Scope",
    "Watermarks",
]

PREBUILT = ("python312", "v8", "chromium")
"""Names of the dictionaries in the package."""

_LEVELS = {"zstd": (-7, 22), "lz4": (0, 12), "lz4hc": (1, 12)}
"""Levels that each algorithm has; `raw` has none."""

_DEFAULT_LEVELS = {"zstd": 3, "lz4": 0, "lz4hc": 9}
"""As the engine has them; that of lz4hc is its library's."""

_PAGE_BYTES = 4096


def unfit(problem: str, fix: str, key: str = "", value: object = None) -> PydanticCustomError:
    """
    A value that cannot be used.

    Args:
        problem: What is wrong, without key and value.
        fix: What to write instead.
        key: Key below the checked section that the problem is about, if it checks several.
        value: What that key has; shown if it is the default and not in the file.
    """
    told = {"problem": problem, "fix": fix, "key": key, "value": value}
    return PydanticCustomError("unfit", "{problem}", told)


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, str):
        raise unfit("is not a size", "write a number and a unit, like 8GB or 512MiB")
    try:
        size = units.parse_size(value, "")
    except InvalidSetting as error:
        raise unfit(str(error).split(":")[0].strip(), error.hint or "give whole bytes") from error
    if size >= 2**46:
        raise unfit("is larger than 64 TiB", "give a smaller size")
    return size


def _duration(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str):
        raise unfit("is not a duration", "write a number and a unit, like 30s or 20ms")
    try:
        seconds = units.parse_duration(value, "")
    except InvalidSetting as error:
        raise unfit("is not a duration", error.hint) from error
    if seconds > 7 * 86400:
        raise unfit("is longer than a week", "give at most 168h")
    return seconds


def _whole(low: int, high: int, unit: str = "") -> BeforeValidator:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise unfit("is no number in range", f"give a whole number from {low} to {high}{unit}")
        return value

    return BeforeValidator(check)


def _one_of(*words: str) -> BeforeValidator:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise unfit("is not known", f"choose one of {', '.join(words)}")
        return value

    return BeforeValidator(check)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise unfit("is neither true nor false", "write true or false")
    return value


def _dictionary(value: Any) -> Any:
    if isinstance(value, str) and value in {"auto", "prebuilt", "none"}:
        return value
    fix = f"write auto, prebuilt, none, or names out of {','.join(PREBUILT)}"
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",")]
    if not isinstance(value, list) or not value:
        raise unfit("is no choice of dictionaries", fix)
    if not all(isinstance(name, str) and name in PREBUILT for name in value):
        raise unfit("names a dictionary that is not known", fix)
    if len(set(value)) < len(value):
        raise unfit("names a dictionary twice", fix)
    return value


def _suffixes(value: Any) -> list[str]:
    fix = 'write a list of endings like [".jpg", ".safetensors"]; [] skips nothing'
    if not isinstance(value, list):
        raise unfit("is no list of file endings", fix)
    for suffix in value:
        if not isinstance(suffix, str) or not re.fullmatch(r"(\.[\w+-]{1,32}){1,3}", suffix):
            raise unfit("holds something that is no file ending", fix)
    # Endings are compared without regard to case, as cameras and people write them both ways.
    return sorted({suffix.lower() for suffix in value})


def _path(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or "\0" in value or not os.path.isabs(value):
        raise unfit("is no absolute path", "write the whole path, like /var/lib/agentzip/swapfile")
    if value.endswith("/") or {".", ".."} & set(value.split("/")):
        raise unfit("does not name a file plainly", "write the file itself, without . and ..")
    return value


def _window(value: Any) -> list[int]:
    fix = "write the least and the most pages, like [16, 256], both within these"
    if not isinstance(value, list) or len(value) != 2:
        raise unfit("is no pair of numbers", fix)
    if not all(isinstance(edge, int) and not isinstance(edge, bool) for edge in value):
        raise unfit("is no pair of numbers", fix)
    # What the engine takes: fewer pages than 16 cost as much as 16, more than 256 as a whole wake.
    if not 16 <= value[0] <= value[1] <= 256:
        raise unfit("is no window", fix)
    return value


def _directory(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value or not os.path.isabs(value):
        raise unfit("is no absolute path", "write the whole path, like /var/lib/agentzip")
    if {".", ".."} & set(value.split("/")) or not value.strip("/"):
        raise unfit("does not name a directory plainly", "write it without . and ..")
    return value.rstrip("/")


def _listen(value: Any) -> str | None:
    fix = 'write an address of this host alone, like "127.0.0.1:9477" or "[::1]:9477"'
    if value is None:
        return None
    if not isinstance(value, str):
        raise unfit("is no address", fix)
    host, _, port = value.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or not 0 < int(port) < 65536:
        raise unfit("has no port", fix)
    bracketed = re.fullmatch(r"\[(.*)\]", host)
    try:
        address = ipaddress.ip_address(bracketed[1] if bracketed else host)
    except ValueError as error:
        raise unfit("is no address", fix) from error
    if (address.version == 6) != bool(bracketed):
        raise unfit("is no address", fix)
    # Names and sizes of everybody's sandboxes stand in the metrics.
    if not address.is_loopback:
        raise unfit("can be reached from other hosts", fix)
    return value


def _cgroup(value: Any) -> str:
    try:
        return patterns.checked(value)
    except InvalidSetting as error:
        raise unfit(str(error), error.hint) from error


def _latency(value: Any) -> float:
    seconds = _duration(value)
    if seconds <= 0:
        raise unfit("cannot be met", "give a time above zero, like 20ms")
    return seconds


def _own_latency(value: Any) -> float | None:
    return None if value is None else _latency(value)


Size = Annotated[int, BeforeValidator(_size)]
Duration = Annotated[float, BeforeValidator(_duration)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Percent = Annotated[int, _whole(1, 100, " (percent)")]


class _Section(BaseModel):
    """A group of keys; immutable, and a key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Compression(_Section):
    """How pages are encoded."""

    algorithm: Annotated[
        Literal["zstd", "lz4", "lz4hc", "raw"], _one_of("zstd", "lz4", "lz4hc", "raw")
    ] = "zstd"
    """`zstd` (densest, and the only one with dictionaries), `lz4`, `lz4hc`, or `raw` (none)."""
    level: Annotated[int, _whole(-7, 22)] | None = None
    """Level of the algorithm; default 3 for zstd, 0 for lz4, 9 for lz4hc."""
    dictionary: Annotated[
        Literal["auto", "prebuilt", "none"] | list[str], BeforeValidator(_dictionary)
    ] = "auto"
    """
    `auto`: a sandbox's own or its image's, else a prebuilt one; `prebuilt`: only those of the
    package; `none`; or names of prebuilt ones.  One that does not pay on a sample is never used.
    """
    page_size: Annotated[int, _whole(_PAGE_BYTES, _PAGE_BYTES, " (bytes)")] = _PAGE_BYTES
    """Bytes encoded together; one page, because larger groups make reading one page slow."""
    skip: Annotated[list[str], BeforeValidator(_suffixes)] = [
        *(".h5", ".jpg", ".mp4", ".png", ".safetensors", ".zip"),
    ]
    """Endings of files whose pages are never encoded: they are compressed already, or on disk."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.level is not None:
            if self.algorithm not in _LEVELS:
                raise unfit(
                    "does nothing: raw has no levels", "leave the level out", "level", self.level
                )
            low, high = _LEVELS[self.algorithm]
            if not low <= self.level <= high:
                raise unfit(
                    f"is out of range for {self.algorithm}",
                    f"give a level from {low} to {high}",
                    "level",
                    self.level,
                )
        if self.algorithm != "zstd" and self.dictionary not in ("auto", "none"):
            raise unfit(
                f"does not go with {self.algorithm}: only zstd has dictionaries",
                "write algorithm: zstd, or dictionary: none",
                "dictionary",
                self.dictionary,
            )
        return self

    @property
    def effective_level(self) -> int | None:
        """The level that holds; None for an algorithm that has none."""
        return _DEFAULT_LEVELS.get(self.algorithm) if self.level is None else self.level


class Pool(_Section):
    """The memory that encoded pages take, and what is behind it."""

    max_size: Size = 8 * 10**9
    """Hard cap; at the cap nothing more is paged out.  Bytes, with a unit."""
    reclaim_threshold: Percent = 80
    """Share of `max_size` from which the coldest entries go to disk, if there is a swap file."""
    swap_out_path: Annotated[str | None, BeforeValidator(_path)] = None
    """
    File of the disk tier, encrypted, at most as large as `max_size`.  None by default: disks of
    sandbox hosts are slow and small, and a tier that nobody asked for surprises.
    """
    defrag: Flag = True
    """Whether the pool is compacted in the background, to give memory back to the host."""


class Watermarks(_Section):
    """Memory use of the host, in percent, between which paging out starts and ends."""

    start: Percent = 85
    """Paging out starts above it."""
    stop: Percent = 70
    """It ends below it."""
    between_percent: Annotated[int, _whole(0, 100, " (percent)")] = 10
    """Share of the pages, the coldest, that may go while the host is between the two."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stop >= self.start:
            raise unfit(
                f"is not below start ({self.start})",
                "give stop a smaller number than start",
                "stop",
            )
        return self


class Policy(_Section):
    """When pages leave and come back."""

    hot_threshold_ms: Annotated[int, _whole(1, 3_600_000, " (ms)")] = 1000
    """Two touches within this time make a page hot: it stays."""
    warm_threshold_ms: Annotated[int, _whole(1, 86_400_000, " (ms)")] = 10_000
    """A page touched within this time is warm: it may go to the pool, in the fast encoding."""
    cold_grace_period: Duration = 30.0
    """How long a page must be cold before it may go to disk."""
    watermarks: Watermarks = Watermarks()
    """When the host is short of memory."""
    prefetch_window: Annotated[list[int], BeforeValidator(_window)] = [16, 256]
    """Least and most pages that one fault brings in."""
    latency_target: Annotated[float, BeforeValidator(_latency)] = 0.02
    """What a wake may cost the sandbox; smaller keeps more in memory."""
    file_readahead: Flag = False
    """
    Whether reads of files are foreseen and read ahead (docs/readahead.md).  Off by default: it
    takes up to a twentieth of a processor, and the kernel's own readahead has most of the gain.
    """

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.warm_threshold_ms <= self.hot_threshold_ms:
            raise unfit(
                f"is not above hot_threshold_ms ({self.hot_threshold_ms})",
                "give warm_threshold_ms the larger number",
                "warm_threshold_ms",
                self.warm_threshold_ms,
            )
        return self


class Scope(_Section):
    """A rule that selects sandboxes; one scope is one trust domain unless it says otherwise."""

    cgroup: Annotated[str, BeforeValidator(_cgroup)]
    """
    Pattern of cgroups, in which `*` and `?` match within one name.  Without a `/` it matches the
    name of a cgroup wherever that is, with one the whole path from the root.  The topmost match is
    a sandbox, with everything below it; of several scopes the first that matches counts.
    """
    enabled: Flag = True
    """Whether its sandboxes are paged out; `false` also keeps later scopes from taking them."""
    isolation: Annotated[Literal["scope", "sandbox"], _one_of("scope", "sandbox")] = "scope"
    """
    `scope`: its sandboxes share equal pages, peers and dictionaries; `sandbox`: they share nothing,
    for tenants who must not learn from timing what their neighbours hold.
    """
    latency_target: Annotated[float | None, BeforeValidator(_own_latency)] = None
    """As `policy.latency_target`, for these sandboxes alone."""
    trim: Flag = False
    """
    Whether sandboxes that offer it are asked to give memory back before they are paged out.  Off by
    default: it runs in the sandbox's own process and takes processor time from its task.
    """


class Metrics(_Section):
    """Counters for Prometheus."""

    listen: Annotated[str | None, BeforeValidator(_listen)] = None
    """
    Loopback address and port that serves `/metrics`, like `127.0.0.1:9477`.  None by default: a
    sandbox in the host's network could read of its neighbours there.
    """


class Hints(_Section):
    """How sandboxes say where they are in their life."""

    sandbox_socket: Annotated[str | None, BeforeValidator(_path)] = None
    """
    Socket to be bind-mounted into sandboxes; through it each speaks only for itself.  None by
    default: it lets what runs in a sandbox talk to the daemon.
    """


class Config(_Section):
    """The whole file."""

    compression: Compression = Compression()
    pool: Pool = Pool()
    policy: Policy = Policy()
    metrics: Metrics = Metrics()
    hints: Hints = Hints()
    state_dir: Annotated[str, BeforeValidator(_directory)] = "/var/lib/agentzip"
    """
    Where the daemon keeps what must outlive it: the scopes that commands added.  The environment
    variable AGENTZIP_STATE_DIR wins over it.
    """
    scopes: list[Scope] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        seen: set[str] = set()
        for position, scope in enumerate(self.scopes):
            if scope.cgroup in seen:
                raise unfit(
                    "is given twice", "keep one scope for each pattern", f"scopes.{position}.cgroup"
                )
            seen.add(scope.cgroup)
        return self

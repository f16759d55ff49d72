"""
What selects sandboxes: the rules of the configuration, those that commands added, and processes.

The order is fixed: the file's rules as they stand there, then commands' in the order of their
coming, then named processes.  The first rule that matches decides, also when it is switched off;
so a narrow rule above a wide one makes an exception.

What commands change is kept in `scopes.json` in the state directory, written whole and renamed into
place.  A file that cannot be understood is moved aside and said so: a daemon that does not start
over it would leave pages in the pool.  Named processes end with their last process, and with the
boot, whose id is kept beside them.
"""

import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentzip.errors import AgentZipError, InvalidSetting, NoSuchProcess, NoSuchScope
from agentzip.fleet import state_file
from agentzip.host import processes
from agentzip.host.memory import ROOT
from agentzip.policy import patterns

if TYPE_CHECKING:
    # Its checks take longer to import than most commands run.
    from agentzip.config import Scope

__all__ = ["STATE_FILE", "Rule", "Scopes", "check_name"]

STATE_FILE = "scopes.json"
"""Name of the file within the state directory."""

_FORMAT = 1
_ISOLATIONS = ("scope", "sandbox")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

_RULES_MAX = 1000
"""Rules that commands may add; each costs a comparison for each control group at each tick."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule that selects sandboxes."""

    pattern: str
    """Cgroup pattern, `pid:N` or `run:NAME`."""
    source: str
    """`config`, `command` or `run`."""
    enabled: bool = True
    isolation: str = "scope"
    latency_target: float | None = None
    """Seconds, if it is another one than the host's."""
    trim: bool = False
    """Whether its sandboxes may be asked to give memory back."""
    pid: int = 0
    """The first process of `pid:N` and `run:NAME`; 0 for a cgroup pattern."""
    start_time: int = 0
    """When that process started, in clock ticks after boot."""

    @property
    def sandbox_name(self) -> str:
        """Name of the one sandbox that a rule of a process selects."""
        kind, _, name = self.pattern.partition(":")
        return f"pid-{name}" if kind == "pid" else name


class Scopes:
    """
    All rules; every method may be called from any thread.

    Args:
        configured: The rules of the configuration.
        state_dir: Where changes are kept; None keeps them for the lifetime of this object, for an
            engine of one command.
        root: Where `/proc` is looked for.
    """

    def __init__(
        self, configured: Iterable["Scope"] = (), state_dir: Path | None = None, root: Path = ROOT
    ) -> None:
        self._root = root
        self._path = None if state_dir is None else state_dir / STATE_FILE
        # Guards the rules; the state file is written under it, so that two commands cannot write
        # each other's change away.
        self._lock = threading.Lock()
        self._configured = _of_configuration(configured)
        self._added: dict[str, Rule] = {}
        self._processes: dict[str, Rule] = {}
        self._switched: dict[str, bool] = {}
        self._load()
        self._rules = self._merged()

    def rules(self) -> tuple[Rule, ...]:
        """Every rule in the order in which they select; the same object until one changes."""
        return self._rules

    def find(self, pattern: str) -> Rule:
        """
        The rule with this pattern.

        Raises:
            NoSuchScope: there is none.
        """
        wanted = _normal(pattern)
        for rule in self._rules:
            if rule.pattern == wanted:
                return rule
        raise NoSuchScope(f"no scope has this pattern: {pattern}")

    def add(self, pattern: str, isolation: str = "scope") -> Rule:
        """
        Select more sandboxes, or enable the rule that is there.

        A rule of the configuration keeps its isolation.

        Raises:
            InvalidSetting: pattern or isolation cannot be used, there are too many rules, or the
                change cannot be kept.
            NoSuchProcess: it is `pid:N`, and there is no such process.
        """
        if isolation not in _ISOLATIONS:
            raise InvalidSetting(
                f"isolation is not known: {isolation!r}", f"choose one of {', '.join(_ISOLATIONS)}"
            )
        wanted = _checked(pattern)
        with self._change():
            if wanted in self._configured:
                self._switched[wanted] = True
            elif wanted.startswith("pid:"):
                pid = int(wanted.partition(":")[2])
                start_time = processes.process(pid, self._root).start_time
                self._processes[wanted] = Rule(
                    pattern=wanted,
                    source="command",
                    isolation=isolation,
                    pid=pid,
                    start_time=start_time,
                )
            else:
                if wanted not in self._added and len(self._added) >= _RULES_MAX:
                    raise InvalidSetting(
                        f"there are too many scopes: {len(self._added)}", "remove some"
                    )
                self._added[wanted] = Rule(pattern=wanted, source="command", isolation=isolation)
        return self.find(wanted)

    def run(self, name: str, pid: int, start_time: int) -> Rule:
        """
        Let a process and its descendants be a sandbox for as long as they live.

        Raises:
            InvalidSetting: the name cannot be used, or a living process has it.
            NoSuchProcess: the process has ended, or the pid names another one.
        """
        check_name(name)
        pattern = f"run:{name}"
        with self._change(kept=False):
            if not processes.is_alive(pid, start_time, self._root):
                raise NoSuchProcess(f"process has ended: {pid}")
            known = self._processes.get(pattern)
            if known is not None and (known.pid, known.start_time) != (pid, start_time):
                raise InvalidSetting(
                    f"sandbox name is in use: {name}", "choose another, or wait for its end"
                )
            self._processes[pattern] = Rule(
                pattern=pattern, source="run", pid=pid, start_time=start_time
            )
        return self.find(pattern)

    def enable(self, pattern: str, enabled: bool) -> Rule:
        """
        Switch a rule on or off.

        Raises:
            NoSuchScope: there is none with this pattern.
            InvalidSetting: the change cannot be kept.
        """
        wanted = self.find(pattern).pattern
        with self._change():
            for kept in (self._added, self._processes):
                if wanted in kept:
                    kept[wanted] = replace(kept[wanted], enabled=enabled)
            if wanted in self._configured:
                self._switched[wanted] = enabled
        return self.find(wanted)

    def remove(self, pattern: str) -> Rule:
        """
        Forget a rule that a command added.

        Raises:
            NoSuchScope: there is none with this pattern.
            InvalidSetting: the configuration names it, or the change cannot be kept.
        """
        rule = self.find(pattern)
        if rule.source == "config":
            raise InvalidSetting(
                f"the configuration names this scope: {rule.pattern}",
                f"take it out of the file, or `agentzip scope disable --cgroup '{rule.pattern}'`",
            )
        with self._change():
            self._added.pop(rule.pattern, None)
            self._processes.pop(rule.pattern, None)
        return rule

    def ended(self, rule: Rule) -> None:
        """Forget the rule of a process that has ended with all below it."""
        with self._lock:
            if self._processes.get(rule.pattern) == rule:
                del self._processes[rule.pattern]
                self._rules = self._merged()
                self._save_or_say()

    def configure(self, configured: Iterable["Scope"]) -> None:
        """Take the rules of a changed configuration; what commands said of the others is kept."""
        with self._lock:
            self._configured = _of_configuration(configured)
            # What a command switched is forgotten with the rule that it was about.
            self._switched = {
                pattern: enabled
                for pattern, enabled in self._switched.items()
                if pattern in self._configured
            }
            self._rules = self._merged()
            self._save_or_say()

    def _merged(self) -> tuple[Rule, ...]:
        configured = [
            replace(rule, enabled=self._switched.get(rule.pattern, rule.enabled))
            for rule in self._configured.values()
        ]
        # A pattern that has come into the configuration is the configuration's.
        added = [rule for rule in self._added.values() if rule.pattern not in self._configured]
        return (*configured, *added, *self._processes.values())

    @contextmanager
    def _change(self, kept: bool = True) -> Iterator[None]:
        """A change of the rules; one to be kept holds only if it could be written down."""
        with self._lock:
            before = (dict(self._added), dict(self._processes), dict(self._switched))
            try:
                yield
                if kept:
                    self._save()
                else:
                    self._save_or_say()
            except BaseException as error:
                self._added, self._processes, self._switched = before
                if isinstance(error, OSError) and not isinstance(error, AgentZipError):
                    raise InvalidSetting(
                        f"state_dir cannot keep the scopes: {self._path}: {error}",
                        "make it writable and free some space, or name another one",
                    ) from error
                raise
            self._rules = self._merged()

    # ── the state file ───────────────────────────────────────────────────────────────────────────
    def _load(self) -> None:
        if self._path is None:
            return
        try:
            text = state_file.read(self._path)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.error("scopes that commands added are not read: %s: %s", self._path, error)
            return
        try:
            self._take(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _log.error(
                "scopes that commands added are lost: %s is damaged (%s); it is kept as %s",
                self._path,
                error,
                state_file.put_aside(self._path),
            )
            self._added, self._processes, self._switched = {}, {}, {}

    def _take(self, state: Any) -> None:
        if state["format"] != _FORMAT:
            raise ValueError(f"its format is not known: {state['format']!r}")
        for entry in state["scopes"][:_RULES_MAX]:
            pattern, isolation = patterns.checked(entry["pattern"]), entry["isolation"]
            if isolation not in _ISOLATIONS or not isinstance(entry["enabled"], bool):
                raise ValueError(f"a scope cannot be read: {entry!r}")
            self._added[pattern] = Rule(
                pattern=pattern, source="command", enabled=entry["enabled"], isolation=isolation
            )
        for pattern, enabled in state["switched"].items():
            if pattern in self._configured:
                self._switched[pattern] = bool(enabled)
        if state["boot"] == _boot_id(self._root):
            for entry in state["processes"]:
                rule = Rule(**entry)
                if processes.is_alive(rule.pid, rule.start_time, self._root):
                    self._processes[rule.pattern] = rule

    def _save(self) -> None:
        if self._path is None:
            return
        state = {
            "format": _FORMAT,
            "boot": _boot_id(self._root),
            "scopes": [
                {
                    "pattern": rule.pattern,
                    "enabled": rule.enabled,
                    "isolation": rule.isolation,
                }
                for rule in self._added.values()
            ],
            "switched": self._switched,
            "processes": [asdict(rule) for rule in self._processes.values()],
        }
        state_file.write(self._path, json.dumps(state, indent=1) + "\n")

    def _save_or_say(self) -> None:
        try:
            self._save()
        except OSError as error:
            _log.warning("scopes cannot be kept over a restart: %s: %s", self._path, error)


def check_name(name: str) -> None:
    """Refuse a name that `run` cannot give a sandbox; raises InvalidSetting."""
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"sandbox name cannot be used: {name!r}",
            "use up to 64 letters, digits, dots, underscores and dashes",
        )


def _of_configuration(scopes: Iterable["Scope"]) -> dict[str, Rule]:
    return {
        scope.cgroup: Rule(
            pattern=scope.cgroup,
            source="config",
            enabled=scope.enabled,
            isolation=scope.isolation,
            latency_target=scope.latency_target,
            trim=scope.trim,
        )
        for scope in scopes
    }


def _checked(pattern: str) -> str:
    """A pattern of `add` in its one spelling."""
    if re.fullmatch(r"pid:[1-9][0-9]{0,9}", pattern, re.ASCII):
        return pattern
    if pattern.startswith(("pid:", "run:")):
        raise InvalidSetting(
            f"scope cannot be added: {pattern!r}",
            "write pid:N, or start the program with `agentzip run --sandbox NAME`",
        )
    try:
        return patterns.checked(pattern)
    except InvalidSetting as error:
        raise InvalidSetting(f"pattern {error}: {pattern!r}", error.hint) from error


def _normal(pattern: str) -> str:
    """A pattern in its one spelling; one that cannot be a rule's stays as it is."""
    try:
        return patterns.checked(pattern)
    except InvalidSetting:
        return pattern


def _boot_id(root: Path) -> str:
    """Which boot of the host this is; a start time counts from it."""
    with suppress(OSError):
        return (root / "proc" / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    return ""

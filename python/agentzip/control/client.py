"""
The asking end of the control socket: one method for each thing that a daemon can be asked.
"""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from agentzip import errors, local_socket, model
from agentzip.control.wire import REQUEST_BYTES_MAX, SOCKET_NAME, JsonObject, error_of, line_of
from agentzip.sandboxes import Decision, HintReport, SandboxStatus, ScopeStatus

__all__ = ["ControlClient"]

_ANSWER_BYTES_MAX = 256 * 2**20
"""What a client reads before it calls the answer broken (`inspect` of 100 000 regions fits)."""


class ControlClient:
    """
    Speaks to a daemon; every error comes back as the class the daemon raised.

    Args:
        run_dir: Run directory of the daemon.
        timeout_seconds: How long one answer may take; None waits as long as it takes, since a
            large target takes seconds to leave.

    Raises:
        DaemonUnreachable: nobody answers there.
    """

    def __init__(self, run_dir: Path, timeout_seconds: float | None = None) -> None:
        path = run_dir / SOCKET_NAME
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if timeout_seconds is not None:
            local_socket.wait_in_queue(self._socket, timeout_seconds)
        try:
            self._socket.connect(str(path))
            self._socket.settimeout(timeout_seconds)
        except OSError as error:
            self._socket.close()
            if isinstance(error, PermissionError):
                raise errors.NotPermitted(
                    f"the control socket refuses this user: {path}"
                ) from error
            raise errors.DaemonUnreachable(f"no daemon answers on {path}") from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()

    def call(self, method: str, params: Mapping[str, object] | None = None) -> Any:
        """
        Ask one thing and wait for the answer.

        Raises:
            AgentZipError: what the daemon raised, as the same class.
            DaemonUnreachable: the daemon went away meanwhile.
            InvalidSetting: the daemon would hang up on so long a request.
        """
        request = line_of({"method": method, "params": dict(params or {})})
        if len(request) > REQUEST_BYTES_MAX:
            raise errors.InvalidSetting(
                f"request is too long: {method} with {len(request)} bytes",
                f"at most {REQUEST_BYTES_MAX} bytes: give shorter names or fewer ranges",
            )
        try:
            self._socket.sendall(request)
            line = self._lines.readline(_ANSWER_BYTES_MAX)
        except OSError as error:
            raise errors.DaemonUnreachable(f"the daemon did not answer: {error}") from error
        if not line.endswith(b"\n"):
            raise errors.DaemonUnreachable("the daemon hung up before it answered")
        answer = json.loads(line)
        if "error" in answer:
            raise error_of(answer["error"])
        return answer["result"]

    def ping(self) -> int:
        """Pid of the daemon."""
        return int(self.call("ping")["pid"])

    def attach(self, pid: int, start_time: int | None = None) -> model.AttachReport:
        """Attach a process."""
        answer = self.call("attach", {"pid": pid, "start_time": start_time})
        return model.from_mapping(model.AttachReport, answer)

    def page_out(
        self,
        pid: int,
        ranges: list[tuple[int, int]] | None = None,
        keep: list[tuple[int, int]] | None = None,
    ) -> model.PageOutReport:
        """Page a target out."""
        answer = self.call("page_out", {"pid": pid, "ranges": ranges, "keep": keep})
        return model.from_mapping(model.PageOutReport, answer)

    def page_in(self, pid: int, ranges: list[tuple[int, int]] | None = None) -> model.PageInReport:
        """Bring a target's pages home."""
        answer = self.call("page_in", {"pid": pid, "ranges": ranges})
        return model.from_mapping(model.PageInReport, answer)

    def wake(self, pid: int) -> model.WakeReport:
        """Announce that a target wakes: what it has learned to need comes home now."""
        return model.from_mapping(model.WakeReport, self.call("wake", {"pid": pid}))

    def learned(self, pid: int) -> model.LearnedSet:
        """What a target needs when it wakes."""
        return model.from_mapping(model.LearnedSet, self.call("learned", {"pid": pid}))

    def detach(self, pid: int) -> model.DetachReport:
        """Give one target back."""
        return model.from_mapping(model.DetachReport, self.call("detach", {"pid": pid})[0])

    def detach_all(self) -> list[model.DetachReport]:
        """Give every target back."""
        answers = self.call("detach", {"all": True})
        return [model.from_mapping(model.DetachReport, answer) for answer in answers]

    def regions(self, pid: int) -> list[model.Region]:
        """Every mapping of a process."""
        answers = self.call("inspect", {"pid": pid})
        return [model.from_mapping(model.Region, answer) for answer in answers]

    def census(self, pid: int) -> list[model.CensusRow]:
        """What of a target is out, by class of memory and by codec."""
        answers = self.call("census", {"pid": pid})
        return [model.from_mapping(model.CensusRow, answer) for answer in answers]

    def dictionaries(self) -> list[model.DictionaryInfo]:
        """Every dictionary that the engine holds."""
        answers = self.call("dictionaries")
        return [model.from_mapping(model.DictionaryInfo, answer) for answer in answers]

    def spaces(self) -> list[model.SpaceStatus]:
        """Every managed address space."""
        answers = self.call("status")["spaces"]
        return [model.from_mapping(model.SpaceStatus, answer) for answer in answers]

    def about(self) -> JsonObject:
        """Facts about the daemon."""
        return dict(self.call("status")["daemon"])

    def stats(self) -> model.EngineStats:
        """Counters of the engine."""
        return model.from_mapping(model.EngineStats, self.call("stats"))

    def shutdown(self) -> None:
        """Ask the daemon to detach everything and end."""
        self.call("shutdown")

    def sandboxes(self) -> list[SandboxStatus]:
        """Every sandbox, sorted by name."""
        answers = self.call("sandboxes")
        return [model.from_mapping(SandboxStatus, answer) for answer in answers]

    def hint(self, sandbox: str, phase: str, expect_s: float | None = None) -> HintReport:
        """Say where a sandbox is in its life; one that ends a wait brings its pages home first."""
        answer = self.call("hint", {"sandbox": sandbox, "phase": phase, "expect_s": expect_s})
        return model.from_mapping(HintReport, answer)

    def explain(self, sandbox: str) -> list[Decision]:
        """The last decisions about a sandbox, newest first."""
        answers = self.call("explain", {"sandbox": sandbox})
        return [model.from_mapping(Decision, answer) for answer in answers]

    def sandbox_page_out(self, sandbox: str) -> int:
        """Page a whole sandbox out now; returns pages moved."""
        return int(self.call("sandbox_page_out", {"sandbox": sandbox})["pages"])

    def sandbox_page_in(self, sandbox: str) -> int:
        """Bring a whole sandbox home; returns pages."""
        return int(self.call("sandbox_page_in", {"sandbox": sandbox})["pages"])

    def pin(self, sandbox: str, pinned: bool) -> None:
        """Keep a sandbox in memory, or give it back to the planner."""
        self.call("pin", {"sandbox": sandbox, "pinned": pinned})

    def sandbox_run(self, name: str, pid: int, start_time: int) -> ScopeStatus:
        """Let a process and its descendants be a sandbox of this name for as long as they live."""
        answer = self.call("sandbox_run", {"name": name, "pid": pid, "start_time": start_time})
        return model.from_mapping(ScopeStatus, answer)

    def scopes(self) -> list[ScopeStatus]:
        """Every scope, in the order in which they select."""
        return [model.from_mapping(ScopeStatus, answer) for answer in self.call("scopes")]

    def scope_add(self, pattern: str, isolation: str = "scope") -> ScopeStatus:
        """Select more sandboxes, kept over restarts."""
        answer = self.call("scope_add", {"pattern": pattern, "isolation": isolation})
        return model.from_mapping(ScopeStatus, answer)

    def scope_enable(self, pattern: str, enabled: bool) -> ScopeStatus:
        """Switch a scope on or off."""
        answer = self.call("scope_enable", {"pattern": pattern, "enabled": enabled})
        return model.from_mapping(ScopeStatus, answer)

    def scope_remove(self, pattern: str) -> ScopeStatus:
        """Forget a scope that a command added."""
        answer = self.call("scope_remove", {"pattern": pattern})
        return model.from_mapping(ScopeStatus, answer)

"""
Targets that never stop working while one daemon after the other is killed over them.

All questions to the targets are asynchronous: the daemon that has to serve a fault may be dead just
then, and the answer comes when the next one has taken over.  What is still unanswered is `pending`.
"""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agentzip.selftest.conditions import Snapshot, assert_free, assert_same, snapshot, wait_until
from agentzip.selftest.exact_memory import expect
from agentzip.selftest.host_process import HostProcess
from agentzip.selftest.registry import CheckFailed
from agentzip.selftest.stage import Stage
from agentzip.selftest.targets import Target

__all__ = ["Crowd", "crowd_of"]

_TOUCH_SECONDS = 2.0
"""A single page must be there this soon after a daemon has taken over."""

_ANSWER_SECONDS = 30.0
_KEEPER_SECONDS = 5.0
"""How soon a keeper that was killed has a successor."""

_QUIET_PAGES = 2048


@contextmanager
def crowd_of(stage: Stage, seed: int, others: Sequence[Target] = ()) -> Iterator["Crowd"]:
    """A crowd for one check, which must be unharmed in the end."""
    crowd = Crowd(stage, seed, others)
    try:
        yield crowd
        crowd.finish()
    finally:
        # Without a daemon the targets would wait for ever: they end first, by the stage.
        if crowd.host is not None:
            for target in crowd.targets:
                target.kill()
            crowd.host.stop()
    stage.note(f"{crowd.kills} kills, slowest answer {crowd.slowest * 1000:.0f} ms")


class Crowd:
    """
    Three targets under load, with any others, and the daemon of the moment.

    Args:
        stage: Where they are started.
        seed: Of moments and order.
        others: Are asked to verify their memory all the time; what a right one answers to that
            never changes.
    """

    def __init__(self, stage: Stage, seed: int, others: Sequence[Target] = ()) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - moments and order, not keys
        self.run_dir = stage.run_dir
        self.quiet = stage.memory(8, 21)
        self.busy = stage.memory(8, 22)
        self.busy.ok("threads 3")
        self.stress = stage.start(
            *(stage.program("stress"), "--ops", str(10**12), "--threads", "2"),
            *("--forks", "on", "--seed", str(seed)),
            verify="",
        )
        self.others = list(others)
        self.targets = [self.quiet, self.busy, self.stress, *self.others]
        self._expected = {
            target.pid: target.command(target.verify_command, _ANSWER_SECONDS)
            for target in self.others
        }
        self.before: dict[int, Snapshot] = {t.pid: snapshot(t.pid) for t in self.targets}
        self.all_attached = False
        """False while an attach or a detach may have been interrupted."""
        self.kills = 0
        self.slowest = 0.0
        self.host: HostProcess | None = None
        self._last_end = "nothing"
        self._pending: list[tuple[Target, str]] = []

    @property
    def daemon(self) -> HostProcess:
        """The daemon that is meant to live now."""
        assert self.host is not None
        return self.host

    # ── one life ──────────────────────────────────────────────────────────────────────────────────
    def live(self, crash_at: str | None, seconds: float, *, reattach: bool) -> bool:
        """
        One daemon from its start to its death, with load in between.

        Args:
            crash_at: Its crash point.
            seconds: How long it lives under load if nothing else ends it.
            reattach: Detach and attach again as a part of the load.

        Returns:
            Whether it died at its crash point.
        """
        try:
            reached = not (self._take_over(crash_at) and self._load(reattach=reattach))
            reached = reached or self.daemon.dies_within(seconds)
            if not reached:
                self._expect_no_errors()
        except CheckFailed as failure:
            raise CheckFailed(
                f"in life {self.kills + 1} (ends at {crash_at}) after {self._last_end}: {failure}"
            ) from failure
        self.kill()
        self._last_end = crash_at if reached and crash_at else "a kill at a random moment"
        return reached and crash_at is not None

    def start(self) -> None:
        """
        Start a daemon that is not meant to die.

        Raises:
            CheckFailed: it did.
        """
        expect(self._take_over(None), "the daemon died while it took over")

    def kill(self) -> None:
        """The daemon dies now, if it has not yet."""
        self.daemon.stop()
        self.host = None
        self.kills += 1

    def _take_over(self, crash_at: str | None) -> bool:
        """Start a daemon; False if it died at its crash point before all targets answered."""
        self.host = HostProcess(self.run_dir, crash_at)
        if not self.host.ready():
            return False
        for target in self.targets:
            if not target.alive():
                raise CheckFailed(f"a target died: {target.ending()}")
        missing = {target.pid for target in self.targets} - self.host.adopted
        if missing and self.all_attached:
            raise CheckFailed(f"not taken over: {missing}, adopted: {self.host.adopted}")
        self.all_attached = False
        with suppress(BrokenPipeError):
            for pid in missing:
                self.host.do("attach", pid=pid)
            self.all_attached = True
        return self.all_attached and self._collect(_ANSWER_SECONDS) and self._look_after()

    def _load(self, *, reattach: bool) -> bool:
        """Start to move memory; False if the daemon is dead already."""
        self.all_attached = not reattach
        pids = [target.pid for target in self.targets]
        try:
            self.daemon.do("churn", pids=pids, seed=self.dice.randrange(10**6), reattach=reattach)
        except BrokenPipeError:
            return False
        # Forks and faults of their own, so that the steps of serving and of events are reached.
        self._ask(self.busy, "fork-verify")
        self._ask(self.quiet, "verify")
        for target in self.others:
            self._ask(target, target.verify_command)
        return True

    def _expect_no_errors(self) -> None:
        with suppress(BrokenPipeError):  # It may still die at its crash point.
            errors = self.daemon.do("errors")["errors"]
            expect(not errors, f"under load: {errors}")

    def halt(self) -> None:
        """
        Stop the load of a living daemon.

        Raises:
            CheckFailed: something in it failed.
        """
        errors = self.daemon.do("halt")["errors"]
        expect(not errors, f"under load: {errors}")

    def kill_keeper(self) -> None:
        """The keeper dies under load; the living daemon must start another, and lose nothing."""
        pids = [target.pid for target in self.targets]
        self.daemon.do("churn", pids=pids, seed=self.dice.randrange(10**6), reattach=False)
        time.sleep(self.dice.uniform(0.05, 0.3))
        before = self.daemon.do("stats")
        # Zero or one would not be a keeper: the signal would hit a whole process group, or nobody.
        expect(before["keeper_pid"] > 1, f"no keeper: {before}")
        started = time.monotonic()
        os.kill(before["keeper_pid"], signal.SIGKILL)

        def replaced() -> bool:
            now = self.daemon.do("stats")
            return (
                now["keeper_restarts"] > before["keeper_restarts"]
                and now["keeper_pid"] != before["keeper_pid"]
                and not _is_dead(now["keeper_pid"])
            )

        found = wait_until(replaced, _KEEPER_SECONDS)
        seconds = time.monotonic() - started
        expect(found, f"no new keeper: {self.daemon.do('stats')}")
        # A question may itself have waited for the new one.
        expect(seconds < _KEEPER_SECONDS, f"the new keeper came after {seconds:.1f} s")
        self.halt()
        for target in (self.quiet, self.busy):
            target.verify()

    # ── questions ─────────────────────────────────────────────────────────────────────────────────
    def _ask(self, target: Target, line: str) -> None:
        target.send(line)
        self._pending.append((target, line))

    def _collect(self, seconds: float) -> bool:
        """Take all pending answers, which must be right; False if the daemon died meanwhile."""
        deadline = time.monotonic() + seconds
        while self._pending:
            target, line = self._pending[0]
            # Asked before looking for an answer: one that died later may have served it.
            alive = self.daemon.alive()
            answer = target.poll_line(0.05, line)
            if answer is not None:
                self._judge(target, line, answer)
                self._pending.pop(0)
            elif not alive:
                return False
            elif time.monotonic() > deadline:
                target.read_line(0, line)  # Raises with what the threads wait in.
        return True

    def _judge(self, target: Target, line: str, answer: str) -> None:
        if target is self.stress:
            expect(answer.split()[3] == "0", f"wrong pages: {answer}\n{target.errors()}")
        else:
            expect(answer.startswith("ok"), f"{line}: {answer}")
            right = self._expected.get(target.pid, answer)
            expect(right == answer, f"{target.arguments}: {line}: {answer}, not {right}")

    def _look_after(self) -> bool:
        """Every target lives, answers soon and saw nothing wrong; False if the daemon died."""
        for target in self.targets:
            if not target.alive():
                raise CheckFailed(f"a target died: {target.ending()}")
        started = time.monotonic()
        for target in (self.quiet, self.busy):
            self._ask(target, f"touch {self.dice.randrange(_QUIET_PAGES)}")
        self._ask(self.stress, "status")
        if not self._collect(_TOUCH_SECONDS):
            return False
        self.slowest = max(self.slowest, time.monotonic() - started)
        for target in self.targets:
            try:
                assert_free(target.pid)
            except CheckFailed:
                if self.daemon.alive():
                    raise
                return False
        return True

    # ── the end ───────────────────────────────────────────────────────────────────────────────────
    def finish(self) -> None:
        """Everything is verified, detached and gone."""
        if self.host is None:
            self.start()
        self.busy.ok("stop-threads", _ANSWER_SECONDS)
        self.stress.send("finish")
        line = self.stress.read_line(_ANSWER_SECONDS, "finish")
        expect(line.split()[4] == "0", f"wrong pages: {line}\n{self.stress.errors()}")
        self.stress.wait(10)
        for target in (self.quiet, self.busy, *self.others):
            self.daemon.do("page_out", pid=target.pid)
            target.verify(_ANSWER_SECONDS)
            report = self.daemon.do("detach", pid=target.pid)
            expect(report["complete"], f"detach is not complete: {report}")
            assert_free(target.pid)
            same = target is self.quiet  # The other one has fewer threads now.
            if same:
                assert_same(self.before[target.pid], snapshot(target.pid))
            target.verify(_ANSWER_SECONDS)
        self._expect_clean()

    def _expect_clean(self) -> None:
        host = self.daemon

        def freed() -> bool:
            return host.do("stats")["pool_slots"] == 0 and not host.do("spaces")["spaces"]

        if not wait_until(freed, 5):
            slots, spaces = host.do("stats")["pool_slots"], host.do("spaces")["spaces"]
            raise CheckFailed(f"left in the pool: {slots} slots, spaces {spaces}")
        host.do("give_up")
        if not wait_until(lambda: not host.do("kept")["kept"], 5):
            raise CheckFailed(f"kept although no page needs it: {host.do('kept')['kept']}")
        keeper = host.do("stats")["keeper_pid"]
        expect(host.do("stats")["pages_lost"] == 0, "pages were lost")
        host.do("close")
        host.stop()
        self.host = None
        expect(wait_until(lambda: _is_dead(keeper), 3), f"the keeper outlives close: {keeper}")


def _is_dead(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        stat = (Path("/proc") / str(pid) / "stat").read_text()
        return stat.rsplit(")", 1)[1].split()[0] in "ZX"
    return True

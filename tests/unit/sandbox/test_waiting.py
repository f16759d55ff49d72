"""What `Waiting` says, and when: nesting, exceptions, tasks, threads, cancellation."""

import asyncio
import functools
import threading
from collections.abc import Callable

import pytest

from agentzip.sandbox.here import Advice, Waiting


class Words(list[str]):
    """What has been said; a word that is listed in `broken` cannot be said."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.broken: set[str] = set()
        self.on_say: Callable[[str], None] = lambda _phase: None

    def say(self, phase: str, expect_s: float | None) -> None:
        """Note it."""
        self.on_say(phase)
        if phase in self.broken:
            raise ConnectionError(phase)
        self.append(phase)
        self.waits.append(expect_s)

    def waiting(self, phase: str, expect_s: float | None = None, key: str = "a") -> Waiting:
        """A wait that is told here."""
        return Waiting(self.say, key, phase, expect_s)


@pytest.fixture
def words() -> Words:
    """Nothing has been said."""
    return Words()


def test_nested_waits_restore_the_one_around_them(words: Words) -> None:
    """With what is left of it, and `running` at the very end."""
    with words.waiting("waiting_user", 3600.0), words.waiting("waiting_model", 8.0):
        pass

    assert ["waiting_user", "waiting_model", "waiting_user", "running"] == words
    assert 3600.0 == words.waits[0]
    rest = words.waits[2]
    assert rest is not None
    assert 0 < rest < 3600.0
    assert words.waits[3] is None


def test_an_overdue_wait_has_no_expectation_any_more(words: Words) -> None:
    """Zero would say that it is over."""
    with words.waiting("waiting_user", 0.0), words.waiting("waiting_model"):
        pass

    assert [0.0, None, None, None] == words.waits


def test_waits_of_different_sandboxes_do_not_nest(words: Words) -> None:
    """Each ends with `running` of its own, in whatever order."""
    one, two = words.waiting("waiting_user", key="a"), words.waiting("waiting_model", key="b")
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    two.__exit__(None, None, None)

    assert ["waiting_user", "waiting_model", "running", "running"] == words


def test_an_exception_ends_the_wait_and_goes_on(words: Words) -> None:
    """The phase is restored, and the error is the program's own."""
    with (
        pytest.raises(ZeroDivisionError),
        words.waiting("waiting_user"),
        words.waiting("waiting_tool"),
    ):
        raise ZeroDivisionError

    assert ["waiting_user", "waiting_tool", "waiting_user", "running"] == words


def test_an_error_of_the_program_is_not_replaced_by_ours(words: Words) -> None:
    """Even by one who wants to know of ours; without an error of the program ours is raised."""
    words.broken = {"running"}
    with pytest.raises(ZeroDivisionError), words.waiting("waiting_tool"):
        raise ZeroDivisionError
    with pytest.raises(ConnectionError), words.waiting("waiting_tool"):
        pass


def test_a_wait_that_could_not_begin_is_not_open(words: Words) -> None:
    """The block does not run, and the next wait does not nest in it."""
    words.broken = {"waiting_model"}
    with pytest.raises(ConnectionError), words.waiting("waiting_model"):
        pytest.fail("the block must not run")
    with words.waiting("waiting_tool"):
        pass

    assert ["waiting_tool", "running"] == words


def test_one_object_may_be_used_again(words: Words) -> None:
    """One after the other."""
    wait = words.waiting("waiting_tool")
    for _ in range(2):
        with wait:
            pass

    assert ["waiting_tool", "running"] * 2 == words


def test_threads_do_not_see_each_others_waits(words: Words) -> None:
    """The end of one thread's wait means that this thread runs on."""
    with words.waiting("waiting_user"):
        thread = threading.Thread(target=lambda: words.waiting("waiting_tool").__enter__())
        thread.start()
        thread.join()
    assert ["waiting_user", "waiting_tool", "running"] == words


def test_tasks_do_not_see_each_others_waits(words: Words) -> None:
    """Two that overlap without nesting both end with `running`."""

    async def agent() -> None:
        first_in, second_in = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with words.waiting("waiting_model"):
                first_in.set()
                await second_in.wait()

        async def second() -> None:
            await first_in.wait()
            async with words.waiting("waiting_tool"):
                second_in.set()
                await one

        one = asyncio.create_task(first())
        await asyncio.gather(one, second())

    asyncio.run(agent())

    assert ["waiting_model", "waiting_tool", "running", "running"] == words


def test_nested_waits_of_a_task_restore_the_one_around_them(words: Words) -> None:
    """Both kinds of block may be mixed."""

    async def agent() -> None:
        async with words.waiting("waiting_user"):
            with words.waiting("waiting_tool"):
                pass
            async with words.waiting("waiting_model"):
                pass

    asyncio.run(agent())

    expected = ["waiting_user", "waiting_tool", "waiting_user", "waiting_model", "waiting_user"]
    assert [*expected, "running"] == words


def test_the_event_loop_goes_on_meanwhile(words: Words) -> None:
    """A host that takes its time does not hold up other tasks, even with all threads busy."""
    reached = threading.Event()
    words.on_say = lambda _phase: None if reached.wait(20) else pytest.fail("the loop stood still")
    busy = threading.Event()

    async def agent() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(64):
            loop.run_in_executor(None, busy.wait, 20)

        async def other() -> None:
            reached.set()

        task = asyncio.create_task(other())
        async with words.waiting("waiting_model"):
            await task
        busy.set()

    asyncio.run(agent())

    assert ["waiting_model", "running"] == words


def test_a_cancelled_task_ends_its_wait(words: Words) -> None:
    """Cancellation is an exception like any other."""

    async def agent() -> None:
        inside = asyncio.Event()

        async def wait() -> None:
            async with words.waiting("waiting_model"):
                inside.set()
                await asyncio.sleep(3600)

        task = asyncio.create_task(wait())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(agent())

    assert ["waiting_model", "running"] == words


def test_a_task_that_is_cancelled_while_it_says_so_takes_it_back(words: Words) -> None:
    """The word was on its way, the block never ran: nobody else would end that wait."""
    saying, go = threading.Event(), threading.Event()

    def slowly(phase: str) -> None:
        if phase == "waiting_model":
            saying.set()
            assert go.wait(20)

    words.on_say = slowly

    async def agent() -> None:
        async def wait() -> None:
            async with words.waiting("waiting_model"):
                pytest.fail("the block must not run")

        task = asyncio.create_task(wait())
        await asyncio.to_thread(saying.wait, 20)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(agent())

    assert ["waiting_model", "running"] == words


def test_failures_of_a_task_are_like_those_of_a_thread(words: Words) -> None:
    """Ours is raised where there is none of the program's."""

    async def begin() -> None:
        async with words.waiting("waiting_model"):
            pytest.fail("the block must not run")

    async def end(error: Exception | None = None) -> None:
        async with words.waiting("waiting_tool"):
            if error is not None:
                raise error

    words.broken = {"waiting_model", "running"}
    with pytest.raises(ConnectionError):
        asyncio.run(begin())
    with pytest.raises(ConnectionError):
        asyncio.run(end())
    with pytest.raises(ZeroDivisionError):
        asyncio.run(end(ZeroDivisionError()))


def test_advice_that_fails_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each kind of failure, with its text; then it is known."""
    advice = Advice("somebody")

    def fail(text: str) -> int:
        raise RuntimeError(text)

    texts = ("one", "one", "two", "one")
    answers = [advice.attempt(functools.partial(fail, text)) for text in texts]

    assert [None] * 4 == answers
    assert 5 == advice.attempt(lambda: 5)
    messages = [record.getMessage() for record in caplog.records]
    assert ["one", "two"] == [message.rsplit(": ", 1)[1] for message in messages]


def test_log_lines_of_advice_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """Failures that are all different, as with a name in each, do not fill memory or log."""
    advice = Advice("somebody")

    def fail(number: int) -> None:
        raise RuntimeError(str(number))

    for number in range(1000):
        advice.attempt(functools.partial(fail, number))

    assert 100 == len(caplog.records)


def test_advice_is_silent_after_a_slow_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that hangs costs the agent one time-out, not one at each wait."""
    now = 100.0
    monkeypatch.setattr("agentzip.sandbox.here.time.monotonic", lambda: now)
    advice = Advice("somebody")
    tries = 0

    def hang() -> None:
        nonlocal now, tries
        tries += 1
        now += 10
        raise TimeoutError

    for _ in range(5):
        advice.attempt(hang)
    assert 1 == tries
    now += 31
    advice.attempt(hang)

    assert 2 == tries

"""Which parts of files are asked for, and what that may cost: without a kernel."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agentzip.policy.readahead import Ask, DirectoryOrder, FileId, Read, Runs
from agentzip.readahead.reader import Allowance

FILE = FileId(1, 2)


def test_a_run_is_asked_for_ahead_and_the_window_doubles_up_to_its_end() -> None:
    """Asks follow each other without a gap and without an overlap."""
    runs = Runs((16, 64))
    asks = [runs.see(Read(FILE, page, page + 4)) for page in range(0, 400, 4)]
    made = [ask for ask in asks if ask is not None]
    assert Ask(FILE, 4, 20) == made[0]
    assert [16, 32, 64, 64] == [ask.end - ask.start for ask in made[:4]]
    assert all(first.end == second.start for first, second in pairwise(made))


def test_a_read_in_the_middle_has_to_be_followed_by_the_next() -> None:
    """One read away from the start is no run yet."""
    runs = Runs((16, 64))
    assert runs.see(Read(FILE, 1000, 1004)) is None
    assert Ask(FILE, 1008, 1040) == runs.see(Read(FILE, 1004, 1008))


def test_random_reads_ask_for_nothing() -> None:
    """What cannot be foreseen is not guessed."""
    runs = Runs((16, 64))
    assert [None] * 5 == [runs.see(Read(FILE, p, p + 1)) for p in (900, 100, 5000, 300, 7000)]


def test_a_read_again_does_not_end_the_run() -> None:
    """A reader that looks back changes nothing about what is asked for."""
    runs, plain = Runs((16, 64)), Runs((16, 64))
    asks = []
    for page in range(0, 100, 4):
        asks.append(runs.see(Read(FILE, page, page + 4)))
        assert plain.see(Read(FILE, page, page + 4)) == asks[-1]
        assert runs.see(Read(FILE, max(0, page - 8), page)) is None or page == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2000), st.integers(1, 64))))
def test_the_table_is_bounded_and_no_ask_is_larger_than_the_window(
    reads: list[tuple[int, int, int]],
) -> None:
    """Whatever is read."""
    runs = Runs((16, 256), files_max=8)
    for inode, start, length in reads:
        ask = runs.see(Read(FileId(1, inode), start, start + length))
        assert len(runs) <= 8
        if ask is not None:
            assert 0 < ask.end - ask.start <= 256
            assert ask.start >= start


def test_the_order_of_a_directory_is_followed_after_two_files() -> None:
    """Each later file brings in one more."""
    order = DirectoryOrder([10, 11, 12, 13, 14, 15, 16, 17], ahead=3)
    assert [[], [12, 13, 14], [15], [16]] == [order.see(inode) for inode in (10, 11, 12, 13)]
    assert [] == order.see(99)


@given(st.permutations(range(20)), st.lists(st.integers(0, 19)))
def test_no_file_is_asked_for_twice_in_a_row_of_followers(
    files: list[int], reads: list[int]
) -> None:
    """Whatever the order of reads."""
    order = DirectoryOrder(files, ahead=4)
    for file in reads:
        asked = order.see(file)
        assert len(set(asked)) == len(asked) <= 4
        assert file not in asked


@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 2)), max_size=50))
def test_processor_time_is_a_twentieth_and_what_was_saved(
    steps: list[tuple[float, float]],
) -> None:
    """However it is spent, in many short steps as well, if each pause is kept."""
    now = taken = 0.0
    allowance = Allowance(now)
    for spent, idle in steps:
        now += spent + idle
        taken += spent
        now += allowance.pause_after(spent, now)
        assert taken <= 0.5 + 0.05 * now + 1e-6


def test_a_burst_after_a_rest_is_worked_off_at_once() -> None:
    """The longest one is half a second of processor time."""
    allowance = Allowance(0.0)
    assert 0.0 == allowance.pause_after(0.5, 0.0)
    assert 2.0 == allowance.pause_after(0.1, 0.0)
    assert 0.0 == allowance.pause_after(0.5, 1000.0)

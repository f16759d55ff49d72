"""The witness of the demo, on files laid out as /proc has them."""

import struct
from array import array
from pathlib import Path

import pytest

from agentzip.errors import NoSuchProcess
from agentzip.host.pages import PAGE_BYTES, Snapshot, compare, present_pages, snapshot

PRESENT = 1 << 63


def lay_out(root: Path, present: list[int], content: bytes) -> None:
    """Lay out process 5 with eight pages of address space."""
    folder = root / "proc" / "5"
    folder.mkdir(parents=True, exist_ok=True)
    entries = [PRESENT | 7 if page in present else 0 for page in range(8)]
    (folder / "pagemap").write_bytes(struct.pack("=8Q", *entries))
    (folder / "mem").write_bytes(content)


def pages_of(*letters: str) -> bytes:
    """One page full of each letter."""
    return b"".join(letter.encode() * PAGE_BYTES for letter in letters)


def test_only_resident_pages_within_the_ranges_are_seen(tmp_path: Path) -> None:
    """Ranges bound what is looked at, and absent pages are left out."""
    lay_out(tmp_path, [1, 2, 5, 7], b"")
    ranges = [(PAGE_BYTES, 3 * PAGE_BYTES), (4 * PAGE_BYTES, 6 * PAGE_BYTES)]

    assert [1, 2, 5] == list(present_pages(5, ranges, tmp_path))


def test_equal_pages_have_equal_digests(tmp_path: Path) -> None:
    """A digest depends on the content alone, and unknown pages have none."""
    lay_out(tmp_path, [0, 1, 2, 4], pages_of(*"aabcd"))
    found = snapshot(5, [(0, 8 * PAGE_BYTES)], tmp_path)

    assert found.digest(0) == found.digest(1)
    assert found.digest(0) != found.digest(2)
    assert None is found.digest(3)
    assert None is found.digest(7)


def test_a_changed_and_a_missing_page_are_wrong(tmp_path: Path) -> None:
    """Pages that left are judged, pages that stayed are not."""
    everything = [(0, 8 * PAGE_BYTES)]
    lay_out(tmp_path, [0, 1, 2, 3], pages_of(*"abcd"))
    before = snapshot(5, everything, tmp_path)
    lay_out(tmp_path, [0, 1, 3], pages_of(*"aXcY"))
    after = snapshot(5, everything, tmp_path)
    outcome = compare(before, [3], after)

    assert (1, 2) == (outcome.equal, outcome.different)


def test_a_page_that_leaves_while_being_read_is_an_error(tmp_path: Path) -> None:
    """A snapshot is never silently incomplete."""
    lay_out(tmp_path, [0, 1], pages_of("a"))

    with pytest.raises(OSError, match="cannot be read"):
        snapshot(5, [(0, 8 * PAGE_BYTES)], tmp_path)


def test_a_missing_process_is_an_error(tmp_path: Path) -> None:
    """What does not exist cannot be read."""
    with pytest.raises(NoSuchProcess):
        snapshot(5, [(0, PAGE_BYTES)], tmp_path)


def test_an_empty_snapshot_is_possible() -> None:
    """Nothing before, nothing to judge."""
    empty = Snapshot(array("Q"), b"")

    assert 0 == compare(empty, [], empty).equal

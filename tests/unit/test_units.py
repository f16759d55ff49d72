"""Sizes and durations as people write them."""

import pytest

from agentzip.errors import InvalidSetting
from agentzip.units import format_bytes, format_microseconds, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8GB", 8_000_000_000),
        ("512MiB", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        (" 4 kB ", 4000),
        ("17B", 17),
    ],
)
def test_a_size_with_a_unit_is_read(text: str, expected: int) -> None:
    """Decimal and binary units mean what they say."""
    assert expected == parse_size(text)


@pytest.mark.parametrize("text", ["8G", "8gb", "8", "8 Gi", "", "GB", "-1GB", "0GB", "1e9B", "8Gb"])
def test_an_ambiguous_size_is_refused(text: str) -> None:
    """What two programs would read differently is refused, with the name of the field."""
    with pytest.raises(InvalidSetting, match="--pool-size"):
        parse_size(text, "--pool-size")


def test_the_hint_offers_both_readings() -> None:
    """The fix for `8G` is written out."""
    with pytest.raises(InvalidSetting) as caught:
        parse_size("8G")

    assert "8GB" in caught.value.hint
    assert "8GiB" in caught.value.hint


def test_part_of_a_byte_is_refused() -> None:
    """A size is a whole number of bytes."""
    with pytest.raises(InvalidSetting, match="whole number"):
        parse_size("1.5B")


@pytest.mark.parametrize(("text", "expected"), [("10s", 10), ("500ms", 0.5), ("2min", 120)])
def test_a_duration_is_read(text: str, expected: float) -> None:
    """Durations are in seconds."""
    assert expected == parse_duration(text)


@pytest.mark.parametrize("text", ["10", "10sec", "soon", ""])
def test_a_duration_without_a_known_unit_is_refused(text: str) -> None:
    """A bare number could be seconds or milliseconds."""
    with pytest.raises(InvalidSetting):
        parse_duration(text)


def test_sizes_are_written_with_a_unit_that_keeps_them_short() -> None:
    """Sizes for people have one decimal."""
    written = [format_bytes(size) for size in (0, 1023, 1536, 250 * 2**20, -(2**30), 2**50)]

    assert ["0 B", "1023 B", "1.5 KiB", "250.0 MiB", "-1.0 GiB", "1024.0 TiB"] == written


def test_durations_are_written_with_a_unit_that_keeps_them_short() -> None:
    """Durations for people go from microseconds to seconds."""
    written = [format_microseconds(duration) for duration in (8.62, 1500, 2_340_000)]

    assert ["8.6 us", "1.5 ms", "2.34 s"] == written

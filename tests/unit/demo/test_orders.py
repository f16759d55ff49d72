"""The data of the demo's agents."""

import csv
from pathlib import Path

from agentzip.demo import orders


def test_a_seed_always_makes_the_same_rows() -> None:
    """Runs can be compared; agents differ."""
    assert list(orders.rows(1, 60)) == list(orders.rows(1, 60))
    assert list(orders.rows(1, 60)) != list(orders.rows(2, 60))


def test_the_rows_need_cleaning() -> None:
    """There are as many rows as asked for, some of them twice, some without a price."""
    made = list(orders.rows(1, 500))
    numbers = [row[0] for row in made]

    assert 500 == len(made)
    assert len(set(numbers)) < len(numbers)
    assert any(not row[orders.COLUMNS.index("price")] for row in made)


def test_a_file_has_a_heading_and_full_rows(tmp_path: Path) -> None:
    """The file is what pandas is to read."""
    path = tmp_path / "orders.csv"
    orders.main(["--seed", "3", "--rows", "20", "--out", str(path)])
    with path.open(newline="") as file:
        found = list(csv.reader(file))

    assert orders.COLUMNS == found[0]
    assert {len(orders.COLUMNS)} == {len(row) for row in found}
    assert 21 == len(found)

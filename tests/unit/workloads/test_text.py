"""Text of the workloads: the same at every run, and no two instances share any."""

import gzip
import itertools
from collections import Counter
from pathlib import Path

import pytest

from agentzip.workloads.text import Vocabulary, documents, moments


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Some files of the kinds that hosts have, one of them twice."""
    for number in range(12):
        text = f"document {number}\n" * 300
        (tmp_path / f"note-{number}.txt").write_text(text)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(bytes(range(32, 127)) * 60, 0))
    (tmp_path / "broken.gz").write_bytes(b"no gzip at all " * 200)
    (tmp_path / "picture.png").write_bytes(b"x" * 5000)
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "note-0.txt").write_text("document 0\n" * 300)
    return tmp_path


def test_no_document_goes_to_two_instances(shelf: Path) -> None:
    """All shares together are all readable documents, each once."""
    shares = [list(documents(number, 3, 10_000, [shelf])) for number in range(3)]
    names = [name for share in shares for name, _ in share if not name.startswith("note-0.")]

    assert len(names) == len(set(names))
    assert not any("picture" in name or "broken" in name for name in names)


def test_a_host_without_documents_gets_made_up_ones(tmp_path: Path) -> None:
    """Enough text comes in any case, and it differs from instance to instance."""
    first, second = (list(documents(number, 2, 30_000, [tmp_path])) for number in range(2))

    assert sum(len(text) for _, text in first) >= 30_000
    assert not {text for _, text in first} & {text for _, text in second}


def test_a_vocabulary_is_used_as_people_use_theirs() -> None:
    """A few words make up much of a text, most words are rare; the seed decides which."""
    words = Vocabulary(1).pick(20_000)
    counted = Counter(words)
    often = sum(count for _, count in counted.most_common(50))

    assert words == Vocabulary(1).pick(20_000)
    assert 0.25 < often / len(words) < 0.6
    assert len(counted) > 2000
    assert Vocabulary(1).sentence() != Vocabulary(2).sentence()


def test_time_goes_forward() -> None:
    """Moments never go back."""
    taken = list(itertools.islice(moments(3, 60), 200))

    assert taken == sorted(taken)

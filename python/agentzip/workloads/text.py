"""
Plausible text: neither constant nor random, and no two instances share any.

Words: every instance has a vocabulary of its own, made of syllables, and uses it as people use
theirs (Zipf: few words often, many rarely).  Documents: real files of this host (Python's own
library, manuals, package notes), dealt out like cards, so that no file goes to two instances.
"""

import gzip
import itertools
import os
import random
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

__all__ = ["Vocabulary", "documents", "moments"]

_ONSETS = (
    *("b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p"),
    *("pl", "pr", "qu", "r", "s", "sh", "sl", "st", "str", "t", "th", "tr", "v", "w", "y", "z"),
)
_VOWELS = ("a", "e", "i", "o", "u", "ea", "ou", "ai", "oo", "ie")
_CODAS = ("", "", "", "n", "r", "s", "t", "l", "m", "ck", "nd", "st", "ng", "rt", "x")
_SYLLABLES = (1, 1, 2, 2, 2, 3, 3, 4)

_DOCUMENT_BYTES_MIN, _DOCUMENT_BYTES_MAX = 2_000, 200_000
"""Below, a file is mostly a licence's head; above, one file would be most of an instance."""

_SUFFIXES = {".py", ".txt", ".md", ".html", ".pm", ".pod", ".gz"}

_DEALING_SEED = 20_261
"""The order in which files are dealt; the same for all instances, or they would share some."""


class Vocabulary:
    """The words of one instance, and how often it uses them."""

    def __init__(self, seed: int, size: int = 6000) -> None:
        # A stream of its own and no security in it: the data must be the same at every run.
        self._chance = random.Random(seed)  # noqa: S311
        words: dict[str, None] = {}
        while len(words) < size:
            words[self._word()] = None
        self.words = list(words)
        # Zipf's law as a cumulative table, which `choices` takes as it is.
        self._weights = list(itertools.accumulate(1 / (rank + 2.7) for rank in range(size)))

    def _word(self) -> str:
        chance = self._chance
        return "".join(
            chance.choice(_ONSETS) + chance.choice(_VOWELS) + chance.choice(_CODAS)
            for _ in range(chance.choice(_SYLLABLES))
        )

    def pick(self, count: int) -> list[str]:
        """Words as they come in running text."""
        return self._chance.choices(self.words, cum_weights=self._weights, k=count)

    def sentence(self) -> str:
        """A sentence of 4 to 18 words, some with a number or a comma in it."""
        words = self.pick(self._chance.randint(4, 18))
        if self._chance.random() < 0.15:
            words.insert(len(words) // 2, str(int(self._chance.paretovariate(0.6)) % 100_000))
        if len(words) > 9:
            words[len(words) // 2] += ","
        return " ".join(words).capitalize() + self._chance.choice("....?!")

    def paragraph(self, sentences: int) -> str:
        """Some sentences in a row."""
        return " ".join(self.sentence() for _ in range(sentences))

    def address(self) -> str:
        """A mail address."""
        first, last, house = self.pick(3)
        return f"{first}.{last}@{house}.example"


def moments(seed: int, mean_seconds: float) -> Iterator[datetime]:
    """Times that go forward as events do, for ever."""
    chance = random.Random(seed)  # noqa: S311
    moment = datetime(2026, 1, 1 + seed % 28, tzinfo=UTC)
    while True:
        moment += timedelta(seconds=chance.expovariate(1 / mean_seconds))
        yield moment


def documents(
    instance: int, instances: int, bytes_max: int, roots: Sequence[Path] | None = None
) -> Iterator[tuple[str, str]]:
    """
    Real documents of one instance: name and text, up to a total size.

    Args:
        instance: Which share, from 0.
        instances: Into how many shares everything is dealt.
        bytes_max: Size of all texts together.
        roots: Where to look; None means where hosts have text.
    """
    total = 0
    for path in _share(instance, instances, roots):
        text = _read(path)
        if len(text) < _DOCUMENT_BYTES_MIN:
            continue
        yield path.name.removesuffix(".gz"), text
        total += len(text)
        if total >= bytes_max:
            return
    # A host with few files: the rest is made up.
    vocabulary = Vocabulary(1_000_003 + instance)
    for number in itertools.count():
        if total >= bytes_max:
            return
        text = "\n\n".join(vocabulary.paragraph(6) for _ in range(20))
        yield f"note-{number}.txt", text
        total += len(text)


def _roots() -> list[Path]:
    shared = Path("/usr/share")
    return [Path(sysconfig.get_path("stdlib")), *(shared / name for name in ("doc", "perl", "man"))]


def _share(instance: int, instances: int, roots: Sequence[Path] | None) -> list[Path]:
    found = _shuffled(tuple(_roots() if roots is None else roots))
    return found[instance::instances]


@cache
def _shuffled(roots: tuple[Path, ...]) -> list[Path]:
    """All documents in the order of dealing."""
    seen: set[tuple[str, int]] = set()
    found = []
    for path, size in sorted(entry for root in roots for entry in _files(str(root))):
        name = os.path.basename(path)
        # The same file in two places must not go to two instances.
        if _DOCUMENT_BYTES_MIN // 3 < size < _DOCUMENT_BYTES_MAX and (name, size) not in seen:
            seen.add((name, size))
            found.append(Path(path))
    random.Random(_DEALING_SEED).shuffle(found)  # noqa: S311
    return found


def _files(folder: str) -> Iterator[tuple[str, int]]:
    """Paths and sizes of the readable kinds; with scandir, since hosts have tens of thousands."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            continue
        if entry.is_dir():
            if entry.name != "site-packages":
                yield from _files(entry.path)
        elif os.path.splitext(entry.name)[1] in _SUFFIXES:
            yield entry.path, entry.stat().st_size


def _read(path: Path) -> str:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error):
        return ""
    return data[:_DOCUMENT_BYTES_MAX].decode(errors="replace")

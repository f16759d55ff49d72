"""
Reads of files foreseen for the sandboxes that are awake.

Only those: one that waits reads nothing worth a look at its descriptors.  Which they are is told
after each look of the observer; where reads are seen, and what is made of them, is `readahead`.
"""

from agentzip.fleet.observer import Observer
from agentzip.readahead import ReadAhead, Source
from agentzip.sandboxes import AWAKE, FileReadAhead

__all__ = ["Foresight"]


class Foresight:
    """
    Read ahead for sandboxes.

    Args:
        observer: Who knows the sandboxes.
        source: Where reads are seen; closed with this.
    """

    def __init__(self, observer: Observer, source: Source) -> None:
        self._observer = observer
        self._source = source.name
        self._ahead = ReadAhead(source)
        self._followed: tuple[int, ...] = ()

    def start(self) -> None:
        """Begin."""
        self._ahead.start()

    def close(self) -> None:
        """End, and leave nothing behind in the kernel."""
        self._ahead.close()

    def look(self) -> None:
        """Follow the processes of the sandboxes that are awake now; returns at once."""
        with self._observer.lock:
            awake = tuple(
                pid
                for life in self._observer.lives.values()
                if life.state.phase in AWAKE
                for pid in life.processes
            )
        if awake != self._followed:
            self._followed = awake
            self._ahead.watch(awake)

    def status(self) -> FileReadAhead:
        """What it has done so far."""
        return FileReadAhead(
            source=self._source,
            processes=len(self._followed),
            pages_asked=self._ahead.pages_asked,
        )

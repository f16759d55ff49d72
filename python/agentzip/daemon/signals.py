"""
Signals of the daemon's process: stop, and read the configuration again.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from agentzip.daemon.serving import Daemon

__all__ = ["stop_on_signals"]


@contextlib.contextmanager
def stop_on_signals(daemon: Daemon) -> Iterator[None]:
    """
    Turn SIGTERM and SIGINT into a request to stop, for the main thread of a process.

    The first one detaches everything; the second ends the waiting.  SIGHUP asks for the
    configuration to be read again.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        daemon.request_stop()

    def reload(_number: int, _frame: FrameType | None) -> None:
        daemon.request_reload()

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    former = {number: signal.signal(number, handle) for number, handle in handlers.items()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)

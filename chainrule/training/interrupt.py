"""Interrupts: Ctrl-C and SIGTERM request a stop; training stops where it can be resumed; twice: it stops at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    def __init__(self) -> None:
        self.requested = False
        self._at_once = False

    def handle(self, number: int, frame: Any) -> None:
        if self._at_once or (self.requested and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.requested = True

    @contextmanager
    def interruptible(self, at_once: bool = True) -> Iterator[None]:
        """Around work that may take long and changes no state: a signal leaves it (at once), and sets `requested`."""
        self._at_once = at_once
        try:
            yield
        except KeyboardInterrupt:
            self.requested = True
        finally:
            self._at_once = False


@contextmanager
def catch_signals(wanted: bool = True) -> Iterator[Stop]:
    """Inside, signals request a stop. If not wanted, or outside the main thread, they do what they did before."""
    stop = Stop()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.handle) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

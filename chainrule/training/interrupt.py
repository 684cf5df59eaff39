"""Ctrl-C and SIGTERM ask training to stop; it does so when it can be gone on from. A second Ctrl-C stops at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    def __init__(self) -> None:
        self.asked = False
        self._waiting = False

    def hear(self, number: int, frame: Any) -> None:
        if self._waiting or (self.asked and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def while_waiting(self, at_once: bool = True) -> Iterator[None]:
        """Around what may take long and changes nothing: it is left at once, or by itself, and `asked` is set."""
        self._waiting = at_once
        try:
            yield
        except KeyboardInterrupt:
            self.asked = True
        finally:
            self._waiting = False


@contextmanager
def listen() -> Iterator[Stop]:
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():    # signals come to the main thread alone
        yield stop
        return
    before = {number: signal.signal(number, stop.hear) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def heard(wanted: bool) -> AbstractContextManager[Stop]:
    """`listen`, if wanted; else signals do what they did before, and nobody is asked."""
    return listen() if wanted else nullcontext(Stop())

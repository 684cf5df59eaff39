"""Slow clients (slowloris): a connection on which no whole request arrives in time is closed.

Otherwise a client that sends its request byte by byte, or not at all, holds a connection as long as it likes, and some
hundred of them leave no file descriptor for others. uvicorn itself ends only connections that are idle after an answer.
Headers must be complete in time; a body may take longer, as long as it comes at some speed.
"""

import asyncio
from typing import Any

from h11 import LocalProtocolError
from uvicorn.protocols.http.auto import AutoHTTPProtocol

SECONDS = 20.0          # in which headers must arrive, and between two checks of a body
SLOWEST = 1000          # bytes of a body in a second, on average between two checks


class TimedHTTP(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol of one connection, with a limit on the time in which a request arrives."""

    def __init__(self, *words: Any, **more: Any):
        super().__init__(*words, **more)
        self._received = self._checked = 0                 # bytes, now and when the timer was started
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        try:
            super().data_received(data)
        except LocalProtocolError:                         # the rest of a request that is answered already is no HTTP
            self.transport.close()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _in_body(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete and self.cycle.more_body

    def _in_headers(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if not (self._in_headers() or self._in_body()):    # the request is whole
            self._stop_watching()
        elif self._timer is None:
            self._checked = self._received
            self._timer = self.loop.call_later(SECONDS, self._check)

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._in_body() and self._received - self._checked >= SECONDS * SLOWEST:
            self._watch()
        elif self._in_headers() or self._in_body():
            self.transport.close()

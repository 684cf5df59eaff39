"""Requests to the engine of the server, the tokens that it answers with, and the generation that a client waits for.

The engine works in a thread of its own. A generation hands its tokens to the event loop in which it was submitted, or
to a thread that waits for them.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from chainrule.inference.sampling import Sampling

TOP = 20    # the most probable tokens that can be asked for


class EngineFull(RuntimeError):
    """Too many requests wait. `retry_after`: seconds after which it may be worth to try again."""

    def __init__(self, waiting: int, retry_after: int = 1):
        super().__init__(f"{waiting} requests are waiting already. Try again in {retry_after} s.")
        self.retry_after = retry_after


class EngineClosed(RuntimeError):
    """The server is being stopped."""


class EngineError(RuntimeError):
    """The model failed on this request: one line for the client."""


@dataclass(frozen=True)
class Request:
    """A prompt, and how it is to be continued."""

    prompt: Sequence[int]                       # a boundary in front is added if it is missing, and not reported
    max_tokens: int                             # 0: only the prompt is scored
    sampling: Sampling = field(default_factory=Sampling)    # its stop texts are the caller's business
    row: int = 0                                # of several samples with one seed: as row r of `chainrule sample`
    logprobs: int | None = None                 # K: log p of each token, and of the K most probable; None: none
    prompt_logprobs: bool = False               # the same for the tokens of the prompt, which are reported then
    ends: bool = True                           # whether the boundary ends the text


class Token(NamedTuple):
    """One token, of the prompt or of the answer."""

    id: int
    logprob: float | None = None                # natural; None: not asked for, or the first token of the prompt
    top: tuple[tuple[int, float], ...] = ()     # the most probable tokens and their log p, highest first
    prompt: bool = False


class Generation:
    """The answer to a request, as it grows: `async for tokens in generation`, or `generation.read()` in a thread."""

    def __init__(self, request: Request, prompt_tokens: int, cancel: Callable[["Generation"], None]):
        self.request, self.prompt_tokens = request, prompt_tokens
        self.finish_reason: str | None = None           # "stop": a boundary; "length": max_tokens, or a full context
        self.cancelled = False
        self._cancel, self._error = cancel, None
        self._tokens: list[Token] = []
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        with suppress(RuntimeError):                    # a thread without a loop: `read`
            self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()

    def cancel(self) -> None:
        """No more tokens are wanted: its row is free at the next step."""
        self.cancelled = True
        self._cancel(self)

    def read(self) -> list[Token]:
        """All tokens, when they are there. Not to be called in an event loop."""
        with self._ready:
            self._ready.wait_for(lambda: self._over)
            self._raise()
            return self._tokens

    async def __aiter__(self) -> AsyncIterator[list[Token]]:
        """Lists of the tokens that are ready."""
        assert self._event is not None, "submit was called outside of an event loop; call read instead"
        while True:
            self._event.clear()
            with self._ready:
                tokens, self._tokens, over = self._tokens, [], self._over
            if tokens:
                yield tokens
            if over:
                self._raise()
                return
            if not tokens:
                await self._event.wait()

    # What the engine calls, in its thread

    def add(self, tokens: Iterable[Token]) -> None:
        with self._lock:
            self._tokens.extend(tokens)

    def finish(self, reason: str | None, error: Exception | None = None) -> None:
        with self._ready:
            self.finish_reason, self._error = reason, error
            self._finished = True
            self._ready.notify_all()

    _finished = False
    _error: Exception | None

    @property
    def _over(self) -> bool:
        return self._finished

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def wake(generations: Iterable[Generation]) -> None:
    """Tells the event loops of these generations that there are tokens, with one call for each loop."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
    for generation in generations:
        if generation._loop is not None and generation._event is not None:
            loops.setdefault(generation._loop, []).append(generation._event)
    for loop, events in loops.items():
        with suppress(RuntimeError):                    # the loop is closed: no client waits
            loop.call_soon_threadsafe(_set_all, events)


def _set_all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        event.set()

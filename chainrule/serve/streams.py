"""Streams of text: the engine's tokens as pieces of text, of several rows at once, for as long as the client listens.

A piece ends with a whole character and holds no part of a stop text. When the client leaves, when the time is over and
when a stop text is met, the engine's rows are freed.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import to_thread
from fastapi import Request, Response
from sse_starlette import EventSourceResponse

from chainrule.inference.generate import Continuation
from chainrule.serve.api_errors import GONE, HEADERS, APIError, as_api_error, too_late
from chainrule.serve.requests import Generation, Token
from chainrule.serve.service import Served, Service

T = TypeVar("T")
PATIENCE = 0.02   # of its time so far, a text that is not streamed may come this much later,
LATEST = 0.05     # and at most so many seconds
LONG = 1 << 13    # characters of a prompt, or tokens of an answer: milliseconds of work


@dataclass(frozen=True)
class Piece:
    """What one row adds at once."""

    row: int
    text: str
    tokens: Sequence[Token]               # of the prompt first, where its log-probabilities were asked for
    finish_reason: str | None = None      # "stop" or "length", in the last piece of a row


@dataclass
class Row:
    """A text that is being generated."""

    number: int
    generation: Generation
    text: Continuation
    end: int | None = None                # a token that ends the text beside the boundary
    streams: bool = True                  # whether the client reads the text as it grows
    tokens_out: int = 0

    async def pieces(self) -> AsyncIterator[Piece]:
        began = time.perf_counter()
        async for tokens in self.generation:
            text, read = "", list[Token]()
            for token in tokens:
                read.append(token)
                if not token.prompt:
                    self.tokens_out += 1
                    text += self.text.rest() if token.id == self.end else self.text.add([token.id])
                if self.text.over:
                    self.generation.cancel()
                    yield Piece(self.number, text, read, "stop")
                    return
            yield Piece(self.number, text, read)
            if not self.streams:          # many tokens at once cost less than one by one, and the client waits for all
                await asyncio.sleep(min(LATEST, PATIENCE * (time.perf_counter() - began)))
        yield Piece(self.number, self.text.rest(), [], self.generation.finish_reason or "length")


async def merged(rows: Sequence[Row], service: Service, served: Served) -> AsyncGenerator[Piece]:
    """The pieces of all rows, as they come. The rows are free at the end, whatever ends this."""
    queue, began, seen = asyncio.Queue[Piece | Exception | None](), time.perf_counter(), False
    seconds = service.limits.seconds
    timer = asyncio.get_running_loop().call_later(seconds, queue.put_nowait, too_late(seconds))
    tasks = [asyncio.create_task(_forward(row, queue)) for row in rows]
    left = len(rows)
    try:
        while left:
            piece = await queue.get()
            if isinstance(piece, Exception):
                raise piece
            if piece is None:
                left -= 1
                continue
            if not seen and any(not token.prompt for token in piece.tokens):
                seen = True
                service.metrics.first_token.labels(served.name).observe(time.perf_counter() - began)
            yield piece
    finally:
        timer.cancel()
        for task, row in zip(tasks, rows):
            task.cancel()
            row.generation.cancel()
        service.metrics.tokens_in.labels(served.name).inc(sum(row.generation.prompt_tokens for row in rows))
        service.metrics.tokens_out.labels(served.name).inc(sum(row.tokens_out for row in rows))


async def _forward(row: Row, queue: "asyncio.Queue[Piece | Exception | None]") -> None:
    try:
        async for piece in row.pieces():
            queue.put_nowait(piece)
        queue.put_nowait(None)
    except Exception as error:
        queue.put_nowait(error)


async def aside(work: Callable[[], T], size: int) -> T:
    """What `work` returns; from a thread where it is long, so that other requests are answered meanwhile."""
    return await to_thread.run_sync(work) if size > LONG else work()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it is cancelled when the client leaves."""
    task, left = asyncio.create_task(work), asyncio.create_task(_left(request))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise APIError(GONE, "the client has gone.")
        return task.result()
    finally:
        for one in (task, left):
            one.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await one


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event_stream(chunks: AsyncGenerator[dict[str, Any]], headers: Mapping[str, str]) -> Response:
    """Server-sent events: one for each chunk, and `[DONE]`; an error in the midst of it is an event too."""

    async def events() -> AsyncIterator[dict[str, str]]:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield {"data": json.dumps(chunk, allow_nan=False)}
            yield {"data": "[DONE]"}
        except Exception as error:
            yield {"data": json.dumps(as_api_error(error).body())}

    return EventSourceResponse(events(), headers={**HEADERS, **headers}, sep="\n")

"""A queue of requests to models: one at a time for each model, since watching a model's taps needs it undisturbed.

Waiting requests hold no thread, so several hundred may wait; more are refused with status 503. Work runs in worker
threads, so the server's own thread stays free to answer others.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TypeVar

from anyio import to_thread
from starlette.exceptions import HTTPException

T = TypeVar("T")

LIMIT = 1000    # requests that wait or are being answered


class Queue:
    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.waiting = limit, 0
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def do(self, work: Callable[[], T], models: Iterable[str], gone: Callable[[], Awaitable[bool]]) -> T:
        """What `work` returns, once these models are free; it is skipped if the client has gone by then."""
        if self.waiting >= self.limit:
            raise HTTPException(503, f"{self.waiting} requests are waiting already. Try again in a moment.")
        self.waiting += 1
        try:
            async with AsyncExitStack() as stack:
                for name in sorted(set(models)):    # always in the same order, so that there is no deadlock
                    await stack.enter_async_context(self._locks[name])
                if await gone():
                    raise HTTPException(499, "the client has gone.")
                return await to_thread.run_sync(work, abandon_on_cancel=True)
        except asyncio.CancelledError:
            raise HTTPException(503, "the server has been stopped.") from None
        finally:
            self.waiting -= 1

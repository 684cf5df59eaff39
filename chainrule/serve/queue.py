"""Questions to models, one at a time for each: what watches a model's taps must have it to itself.

Those that wait hold no thread, so a few hundred may come at once; beyond that the next is told to come again. Work runs
in threads beside the server's own, which meanwhile answers others.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TypeVar

from anyio import to_thread

T = TypeVar("T")

MOST = 1000    # questions that wait or are being answered


class Refusal(Exception):
    """A request that is not answered, and why: one line, with its HTTP status."""

    def __init__(self, status: int, line: str):
        super().__init__(line)
        self.status = status


class Queue:
    def __init__(self, most: int = MOST) -> None:
        self.most, self.waiting = most, 0
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def do(self, work: Callable[[], T], models: Iterable[str], gone: Callable[[], Awaitable[bool]]) -> T:
        """What `work` returns, once these models are free. If whoever asked has gone by then, nothing is done."""
        if self.waiting >= self.most:
            raise Refusal(503, f"{self.waiting} questions are waiting already. Ask again in a moment.")
        self.waiting += 1
        try:
            async with AsyncExitStack() as stack:
                for name in sorted(set(models)):    # all in the same order, so that no two wait for each other
                    await stack.enter_async_context(self._locks[name])
                if await gone():
                    raise Refusal(499, "whoever asked has gone.")
                return await to_thread.run_sync(work, abandon_on_cancel=True)
        except asyncio.CancelledError:
            raise Refusal(503, "the server has been stopped.") from None
        finally:
            self.waiting -= 1

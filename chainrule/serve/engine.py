"""The engine of the server: continuous batching. Requests enter and leave between the steps of a model.

    waiting → prefill, a few tokens of a prompt at a time → decoding, one token of every row at a time → finished

The engine has a thread for all work of its model. Between two decoding steps there is at most one prefill call, so that
a long prompt does not stall the others; a prefix that was read before is taken from the prefix cache. The same request
gives the same bits alone and among others: the shape of every call depends on it alone (batching/row_groups.py).
"""

import copy
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule import kernels
from chainrule.errors import UserError, out_of_memory
from chainrule.inference.evaluate import count_parameters, why_no_answer
from chainrule.inference.forward import device_of, vocabulary_size
from chainrule.model import BOUNDARY, LanguageModel, Model
from chainrule.serve.batching.phases import DecodeGroup, Launched, PrefillGroup, Row
from chainrule.serve.batching.prefix_cache import PrefixCache, prefix_keys
from chainrule.serve.batching.row_groups import RowStates, choose_shapes
from chainrule.serve.requests import TOP, EngineClosed, EngineError, EngineFull, Generation, Request, Token, wake

SMALL = 1e7            # parameters of a model below which several threads are slower than one
THREADS = torch.get_num_threads()
MOST_CALLS = 8         # of prefill between two decoding steps
MANY, PATIENCE = 16, 5    # with so many rows in decoding, a row in prefill waits a few steps for others
FEW = 8                # rows up to which clients get every token at once,
TELL_EVERY = 0.02      # and otherwise the seconds between two messages to the clients
MEMORY_SHARE = 0.4     # of a GPU's free memory for the states of requests,
PREFIX_SHARE = 0.1     # and for the prefix cache


@dataclass(frozen=True)
class Limits:
    rows: int = 64                     # requests that are answered at the same time; others wait
    waiting: int = 1000                # requests that may wait
    step_rows: int | None = None       # rows of a decoding step; None: 4 on a CPU, 64 on a GPU
    state_bytes: int | None = None     # of the states of all requests that are being answered; None: by the device
    prefix_bytes: int | None = None    # of the prefix cache; None: by the device; 0: no cache


@dataclass
class EngineStats:
    running: int = 0                   # requests that are being answered
    waiting: int = 0
    requests: int = 0                  # all so far
    prompt_tokens: int = 0             # read or taken from the cache
    cached_tokens: int = 0             # taken from the prefix cache
    generated_tokens: int = 0
    steps: int = 0                     # decoding steps
    prefill_calls: int = 0


class Engine:
    """Continuous batching for one language model. `submit` may be called from any thread, or from an event loop."""

    def __init__(self, model: LanguageModel, limits: Limits | None = None):
        self.model, self.limits = _private(model), limits or Limits()
        self.stats = EngineStats()
        self.state_bytes, self.prefix_bytes = _memory(device_of(model), self.limits)
        with torch.inference_mode():
            self.vocab = vocabulary_size(self.model)
            self.shapes = choose_shapes(self.model, self.limits.step_rows, self.state_bytes)
        self._states = RowStates(self.model)
        self._cache = PrefixCache(self.prefix_bytes)
        self._waiting: deque[Row] = deque()
        self._running: list[Row] = []
        self._between: deque[Row] = deque()          # running rows that wait for a slot
        self._prefill: list[PrefillGroup] = []
        self._decoding: list[DecodeGroup] = []
        self._launched: deque[Launched] = deque()
        self._news: set[Generation] = set()
        self._urgent: set[Generation] = set()        # those of the news that begin or end
        self._last_news = 0.0
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing, self._drain, self._some_cancelled = False, True, False

    # What clients call

    def start(self) -> None:
        """Starts the thread, which on a GPU captures its graphs. `submit` does so too, but then the first one waits."""
        with self._change:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="chainrule engine", daemon=True)
                self._thread.start()

    def submit(self, request: Request) -> Generation:
        """Raises UserError where the request cannot be answered, EngineFull where too many wait."""
        row = self._row(request)
        with self._change:
            if self._closing:
                raise EngineClosed("the server is being stopped.")
            if len(self._waiting) >= self.limits.waiting:
                raise EngineFull(len(self._waiting))
            self._waiting.append(row)
            self.stats.requests += 1
            self.stats.waiting = len(self._waiting)
            self._change.notify()
        self.start()
        return row.generation

    def close(self, drain: bool = True) -> None:
        """Takes no more requests. `drain`: those that were taken are answered first."""
        with self._change:
            self._closing, self._drain = True, drain and self._drain
            self._change.notify()
        if self._thread is not None:
            self._thread.join()

    def _cancelled(self, generation: Generation) -> None:
        with self._change:
            self._some_cancelled = True
            self._change.notify()

    def _row(self, request: Request) -> Row:
        prompt = np.asarray(request.prompt, np.int64).reshape(-1)
        self._check(request, prompt)
        added = int(len(prompt) == 0 or prompt[0] != BOUNDARY)
        tokens = np.concatenate([np.zeros(added, np.int64), prompt])
        context, limit = self.shapes.context, request.max_tokens
        to_read = len(tokens) if limit else len(tokens) - 1
        if context is not None:
            if to_read > context:
                raise UserError(f"the prompt has {len(tokens)} tokens, with the boundary that begins it, and the "
                                f"model's context is {context}. Give a shorter prompt.")
            limit = min(limit, context - to_read + 1)
        plan = self.shapes.plan(to_read)
        keys = prefix_keys(tokens, plan) if self.prefix_bytes else []
        generation = Generation(request, len(prompt), self._cancelled)
        size = self._bytes(to_read + limit)
        return Row(request, generation, tokens, added, to_read, limit, deque(plan), deque(keys), size)

    def _check(self, request: Request, prompt: NDArray[np.int64]) -> None:
        if request.max_tokens < 0:
            raise UserError(f"max_tokens={request.max_tokens} is not valid: it must be 0 or more.")
        if request.logprobs is not None and not 0 <= request.logprobs <= TOP:
            raise UserError(f"logprobs={request.logprobs} is not valid: it must be from 0 to {TOP}.")
        outside = prompt[(prompt < 0) | (prompt >= self.vocab)]
        if len(outside):
            raise UserError(f"token {outside[0]} is not in the vocabulary, whose ids are from 0 to {self.vocab - 1}.")

    def _bytes(self, tokens: int) -> int:
        with torch.inference_mode():
            return self._states.bytes(self.shapes.capacity(tokens) or tokens)

    # The engine's thread

    def _run(self) -> None:
        torch.set_num_threads(threads_for(self.model))
        use_kernels = self.shapes.gpu and kernels.worthwhile(sys.maxsize)
        with torch.inference_mode(), kernels.in_decoding(use_kernels):
            if self.shapes.gpu:
                self._guarded(self._prepare, [])
            while self._wait():
                self._iterate()
            self._prefill, self._decoding = [], []       # and with them their memory

    def _prepare(self) -> None:
        """All groups, and their graphs, before the first request."""
        for width in self.shapes.widths:
            if self.shapes.context is None or width <= self.shapes.context:
                self._new_group(width, self.shapes.context)
        self._new_group(1, self.shapes.context)

    def _iterate(self) -> None:
        self._drop_cancelled()
        self._admit()
        self._prefill_some()
        for group in list(self._decoding):
            if group.members:
                self._guarded(partial(self._decode, group), list(group.members.values()))
        self._report()
        self._tell()

    def _wait(self) -> bool:
        """Waits until there is something to do; False: the engine is closed."""
        with self._change:
            self.stats.running, self.stats.waiting = len(self._running), len(self._waiting)
            self._change.wait_for(lambda: self._waiting or self._running or self._closing)
            if not self._closing or (self._drain and (self._waiting or self._running)):
                return True
            left = [*self._waiting, *self._running]
            self._waiting.clear()
        for row in left:
            self._end(row, None, EngineClosed("the server has been stopped."))
        self._tell()
        return False

    def _drop_cancelled(self) -> None:
        if not self._some_cancelled:
            return
        with self._change:
            self._some_cancelled = False
            gone = [row for row in self._waiting if row.generation.cancelled]
            for row in gone:
                self._waiting.remove(row)
        for row in chain(gone, [row for row in self._running if row.generation.cancelled]):
            self._end(row, "stop")

    def _admit(self) -> None:
        """Requests begin in order, as far as there are rows and memory."""
        if not self._waiting or len(self._running) >= self.limits.rows:
            return
        with self._change:
            used = sum(row.bytes for row in self._running)
            being_read = {key for row in self._running for key in row.keys}
            new: list[Row] = []
            for row in list(self._waiting):
                full = len(self._running) + len(new) >= self.limits.rows
                if full or (used and used + row.bytes > self.state_bytes):
                    break
                if not row.request.prompt_logprobs and not being_read.isdisjoint(row.keys):
                    continue                             # it waits for a prefix that another row is about to read
                self._waiting.remove(row)
                new.append(row)
                being_read.update(row.keys)
                used += row.bytes
        for row in new:
            self._running.append(row)
            self._guarded(partial(self._begin, row), [row])

    def _begin(self, row: Row) -> None:
        """The first tokens come from the prefix cache, if they can."""
        self.stats.prompt_tokens += row.to_read
        if row.request.prompt_logprobs:
            if not row.added:
                self._add(row, [Token(int(row.tokens[0]), prompt=True)])
        elif row.keys:
            calls, row.state = self._cache.find(list(row.keys))
            for _ in range(calls):
                row.keys.popleft()
                row.held += row.plan.popleft()
            self.stats.cached_tokens += row.held
        if row.limit == 0 and (row.to_read == 0 or not row.request.prompt_logprobs):
            self._end(row, "length")
            return
        if row.state is None:
            row.state = self._states.trim(self._states.blank(1, None), 0)
        self._move(row)

    def _move(self, row: Row) -> None:
        """A row that is in no group enters the one that its next call needs, or waits for a slot there."""
        width = row.plan[0] if row.plan else 1
        capacity = self.shapes.capacity(row.held + width)
        groups: Sequence[PrefillGroup | DecodeGroup] = self._prefill if row.plan else self._decoding
        alike = [group for group in groups if (group.width, group.capacity) == (width, capacity)]
        group = next((group for group in alike if group.free), None)
        if group is None and self._may_add(alike, width):
            group = self._new_group(width, capacity)
        if isinstance(group, PrefillGroup):
            group.enter(row)
        elif group is not None:
            group.enter(row, row.next_token())
        else:
            self._between.append(row)

    def _may_add(self, alike: Sequence[PrefillGroup | DecodeGroup], width: int) -> bool:
        """On a GPU groups are large and stay; on a CPU there is one wherever one is needed."""
        return not self.shapes.gpu or not alike or (width == 1 and len(alike) * self.shapes.rows < self.limits.rows)

    def _new_group(self, width: int, capacity: int | None) -> PrefillGroup | DecodeGroup:
        if width > 1:
            rows = self.shapes.prefill_rows(width)
            self._prefill.append(PrefillGroup(self._states, rows, width, capacity, self.shapes.gpu))
            return self._prefill[-1]
        self._decoding.append(DecodeGroup(self._states, self.shapes.rows, capacity, self.vocab, self.shapes.gpu))
        return self._decoding[-1]

    # Prefill

    def _prefill_some(self) -> None:
        """One call between two decoding steps; a few, if many more rows are in prefill than in decoding."""
        for row in [self._between.popleft() for _ in range(len(self._between))]:
            if not row.done:
                self._guarded(partial(self._move, row), [row])
        decoding = sum(len(group.members) for group in self._decoding)
        in_prefill = len(self._between) + sum(len(group.members) for group in self._prefill)
        for _ in range(min(MOST_CALLS, max(1, in_prefill // max(1, decoding)))):
            busy = [group for group in self._prefill if group.members]
            if not busy:
                return
            chosen = max(busy, key=lambda group: len(group.members) + group.waited)
            for group in busy:
                group.waited += 1
            if self.shapes.gpu and decoding >= MANY and len(chosen.members) + chosen.waited <= PATIENCE:
                return                                   # a call costs the same for one row as for several: wait
            chosen.waited = 0
            self._guarded(partial(self._read, chosen), list(chosen.members.values()))
            if not self.shapes.gpu:
                self._prefill = [group for group in self._prefill if group.members]

    def _read(self, group: PrefillGroup) -> None:
        rows = list(group.members.values())
        first = {row: row.held + 1 for row in rows}      # the place of the first token that is scored
        scored = group.read()
        self.stats.prefill_calls += 1
        for row in rows:
            if row in scored:
                ids = row.tokens[first[row] :].tolist()
                self._add(row, [row.token(first[row] + place, ids[place], number)
                                for place, number in enumerate(scored[row].numbers())])
            self._next_call(row, group)

    def _next_call(self, row: Row, group: PrefillGroup) -> None:
        """After a call: its state goes to the cache, and the row stays in the group or moves to the next."""
        row.plan.popleft()
        stays = bool(row.plan) and row.plan[0] == group.width
        stays &= self.shapes.capacity(row.held + group.width) == group.capacity
        key = row.keys.popleft() if row.keys else None
        if key is not None or not stays:
            state = group.peek(row.slot)
            if key is not None:
                self._cache.add(key, state)
            if not stays:
                group.leave(row)
                row.state = state
                self._move(row)

    # Decoding

    def _decode(self, group: DecodeGroup) -> None:
        for row in list(group.members.values()):
            if group.capacity is not None and row.held == group.capacity:
                self._enlarge(group, row)
        if not group.members:
            self._decoding.remove(group)
            return
        launched = group.launch()
        self._launched.append(launched)
        self.stats.steps += 1
        for _, row, _ in launched.rows:
            if row.sampled == row.limit and row.held >= row.to_read:
                group.leave(row)                         # nothing is left to be chosen, only to be reported

    def _enlarge(self, group: DecodeGroup, row: Row) -> None:
        """A row whose capacity is full goes on in a group with more."""
        row.state, token = group.peek(row.slot), int(group.tokens[row.slot])
        group.leave(row)
        capacity = self.shapes.capacity(row.held + 1)
        others = (other for other in self._decoding if other.free and other.capacity == capacity)
        larger = next(others, None) or self._new_group(1, capacity)
        assert isinstance(larger, DecodeGroup)
        larger.enter(row, token)

    def _report(self) -> None:
        """What the steps have chosen. On a GPU the last step is left, so that the GPU works in the meantime."""
        last = self.shapes.gpu and any(group.members for group in self._decoding)
        if len(self._running) <= FEW and any(row.sampled == 1 for one in self._launched for _, row, _ in one.rows):
            last = False                                 # a client waits for its first token
        while len(self._launched) > last:
            launched = self._launched.popleft()
            tokens, numbers = launched.wait()
            for slot, row, place in launched.rows:
                if not row.done:
                    self._report_row(row, place, tokens[slot], (None, ()) if numbers is None else numbers[slot])

    def _report_row(
        self, row: Row, place: int, id: int, number: tuple[float | None, Sequence[tuple[int, float]]]
    ) -> None:
        if place < len(row.tokens):
            if row.request.prompt_logprobs:
                self._add(row, [row.token(place, id, number)])
            if place == row.to_read:                     # only the prompt was to be scored
                self._end(row, "length")
            return
        if id < 0:
            why = why_no_answer(self.model, "the model gives no token a probability here, so none can be sampled")
            self._end(row, None, UserError(f"{why}."))
            return
        self.stats.generated_tokens += 1
        row.generation.add((row.token(place, id, number),))
        self._news.add(row.generation)
        if place == len(row.tokens):
            self._urgent.add(row.generation)
        if id == BOUNDARY and row.request.ends:
            self._end(row, "stop")
        elif place - len(row.tokens) + 1 == row.limit:
            self._end(row, "length")

    # Messages and ends

    def _add(self, row: Row, tokens: list[Token]) -> None:
        row.generation.add(tokens)
        self._news.add(row.generation)

    def _tell(self) -> None:
        """Wakes the clients: at once when they are few, or one begins or ends; otherwise every few milliseconds."""
        now = time.monotonic()
        if len(self._running) <= FEW or now - self._last_news > TELL_EVERY:
            self._urgent, self._last_news = self._news | self._urgent, now
        if self._urgent:
            wake(self._urgent)
            self._news -= self._urgent
            self._urgent = set()

    def _end(self, row: Row, reason: str | None, error: Exception | None = None) -> None:
        if row.done:
            return
        row.done, row.state = True, None
        if row.group is not None:
            row.group.leave(row)
        if row in self._running:
            self._running.remove(row)
        row.generation.finish(reason, error)
        self._urgent.add(row.generation)

    def _guarded(self, work: Callable[[], None], rows: Sequence[Row]) -> None:
        """An exception ends the requests of a call with one line. The engine goes on, without their groups."""
        try:
            work()
        except Exception as error:
            if out_of_memory(error):
                line = "out of memory. A shorter prompt, or fewer requests at the same time, would fit."
            else:
                traceback.print_exception(error, file=sys.stderr)
                line = f"the model failed on this request: {type(error).__name__}: {error}"
            broken = {id(row.group) for row in rows}
            for row in rows:
                self._end(row, None, EngineError(" ".join(line.split())))
            self._decoding = [group for group in self._decoding if id(group) not in broken]
            self._prefill = [group for group in self._prefill if id(group) not in broken]


def threads_for(model: Model) -> int:
    return 1 if count_parameters(model) < SMALL else THREADS


def _memory(device: torch.device, limits: Limits) -> tuple[int, int]:
    """Bytes for the states of requests, and for the prefix cache."""
    states, prefixes = 4 << 30, 256 << 20
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        states, prefixes = int(MEMORY_SHARE * free), int(PREFIX_SHARE * free)
    return (states if limits.state_bytes is None else limits.state_bytes,
            prefixes if limits.prefix_bytes is None else limits.prefix_bytes)


def _private(model: LanguageModel) -> LanguageModel:
    """The model with the same weights but modules of its own: views that watch the other's taps do not disturb it."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared).eval()

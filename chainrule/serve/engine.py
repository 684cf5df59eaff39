"""The engine of the server: continuous batching. Requests enter and leave between the steps of a model.

    waiting → prefill, a few tokens of a prompt at a time → decoding, one token of every row at a time → finished

The engine has a thread for all work of its model. Between two decoding steps there is at most one prefill call, so that
a long prompt does not stall the others; a prefix that was read before is taken from the prefix cache. The same request
gives the same bits alone and among others, since every call has a shape that the request alone decides (row_groups.py).
"""

import copy
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError, out_of_memory
from chainrule.inference.evaluate import count_parameters, why_no_answer
from chainrule.inference.forward import device_of, vocabulary_size
from chainrule.inference.sampling import uniforms
from chainrule.model import BOUNDARY, LanguageModel, State
from chainrule.serve.prefix_cache import Key, PrefixCache, prefix_keys
from chainrule.serve.requests import (
    TOP,
    EngineClosed,
    EngineError,
    EngineFull,
    Generation,
    Request,
    Token,
    wake,
)
from chainrule.serve.row_groups import RowGroup, RowStates, choose_shapes
from chainrule.serve.row_sampling import SAMPLED, Chosen, RowSamplers, log_probs_of

SMALL = 1e7    # parameters below which several threads are slower than one


@dataclass(frozen=True)
class Limits:
    rows: int = 64                     # requests that are answered at the same time; others wait
    waiting: int = 1000                # requests that may wait
    step_rows: int | None = None       # rows of a decoding step; None: 4 on a CPU, 64 on a GPU
    state_bytes: int = 4 << 30         # of the states of all requests that are being answered
    prefix_bytes: int = 256 << 20      # of the prefix cache; 0: none


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


@dataclass(eq=False)
class Row:
    """A request that is being answered."""

    request: Request
    generation: Generation
    tokens: NDArray[np.int64]          # the boundary and the prompt
    to_read: int                       # how many of them
    limit: int                         # tokens that may be sampled
    plan: deque[int]                   # widths of the prefill calls that are left
    keys: deque[Key]                   # of the prefix cache, after these calls
    bytes: int                         # that its state may need
    hidden: int = 0                    # 1: the boundary was added, and is not reported
    state: State = None                # while it is in no group
    held: int = 0                      # tokens that the state holds
    sampled: int = 0
    done: bool = False

    @property
    def wants_log_probs(self) -> bool:
        if self.held < len(self.tokens):
            return self.request.prompt_logprobs
        return self.request.logprobs is not None

    def given(self, ahead: int = 0) -> int:
        """The token of the prompt after those that are held; SAMPLED: there is none."""
        place = self.held + ahead
        return int(self.tokens[place]) if place < len(self.tokens) else SAMPLED


class DecodeGroup(RowGroup):
    """Rows that read one token in each step, and choose the next."""

    def __init__(self, states: RowStates, rows: int, capacity: int | None):
        super().__init__(states, rows, 1, capacity)
        self.samplers = RowSamplers(rows)
        self.members: dict[int, Row] = {}
        self.tokens = torch.full((rows,), BOUNDARY, device=device_of(self.model))      # (R,) to be read next

    def enter(self, row: Row, token: int) -> None:
        slot = self.put(row.state, row.held)
        row.state = None
        self.members[slot] = row
        self.tokens[slot] = token
        self.samplers.put(slot, row.request)

    def leave(self, slot: int) -> Row:
        row = self.members.pop(slot)
        self.samplers.release(slot)
        self.release(slot)
        return row

    def decode(self, uniform_of: Callable[[Row], float]) -> Chosen:
        """Every row reads a token; what comes next."""
        given, uniform, wanted = [BOUNDARY] * self.rows, [0.0] * self.rows, False
        for slot, row in self.members.items():
            wanted |= row.held + 1 < len(row.tokens) and row.request.prompt_logprobs
            given[slot] = row.given(1)
            if given[slot] == SAMPLED:
                uniform[slot] = uniform_of(row)
                wanted |= row.request.logprobs is not None
        logits = self.step(self.tokens[:, None])[:, 0]
        chosen = self.samplers.choose(logits, given, uniform, wanted)
        self.tokens = chosen.tokens
        return chosen


@dataclass
class Prefill:
    """A group that reads prompts, W tokens of each of its rows in a step."""

    group: RowGroup
    members: dict[int, Row] = field(default_factory=dict)
    waited: int = 0                    # calls of other groups since the last of this one


class Engine:
    """Continuous batching for one language model. `submit` may be called from any thread, or from an event loop."""

    def __init__(self, model: LanguageModel, limits: Limits | None = None):
        self.model, self.limits = _private(model), limits or Limits()
        self.stats = EngineStats()
        with torch.inference_mode():
            self.vocab = vocabulary_size(self.model)
            self.shapes = choose_shapes(self.model, self.limits.step_rows)
        self._states = RowStates(self.model)
        self._cache = PrefixCache(self.limits.prefix_bytes)
        self._waiting: deque[Row] = deque()
        self._running: list[Row] = []
        self._prefill: list[Prefill] = []
        self._decoding: list[DecodeGroup] = []
        self._news: set[Generation] = set()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing, self._drain = False, True

    # What clients call

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
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="chainrule engine", daemon=True)
                self._thread.start()
            self._change.notify()
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
        keys = prefix_keys(tokens, plan) if self.limits.prefix_bytes else []
        generation = Generation(request, len(prompt), self._cancelled)
        return Row(request, generation, tokens, to_read, limit, deque(plan), deque(keys),
                   self._bytes(to_read + limit), added)

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

    @torch.inference_mode()
    def _run(self) -> None:
        torch.set_num_threads(1 if count_parameters(self.model) < SMALL else torch.get_num_threads())
        while self._wait():
            self._drop_cancelled()
            self._admit()
            self._prefill_some()
            for group in list(self._decoding):
                self._guarded(partial(self._decode, group), list(group.members.values()))
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

    def _tell(self) -> None:
        wake(self._news)
        self._news = set()

    def _drop_cancelled(self) -> None:
        with self._change:
            gone = [row for row in self._waiting if row.generation.cancelled]
            for row in gone:
                self._waiting.remove(row)
        for row in chain(gone, [row for row in self._running if row.generation.cancelled]):
            self._end(row, "stop")

    def _admit(self) -> None:
        """Requests begin in order, as far as there are rows and memory."""
        with self._change:
            used = sum(row.bytes for row in self._running)
            new: list[Row] = []
            for row in list(self._waiting):
                full = len(self._running) + len(new) >= self.limits.rows
                if full or (used and used + row.bytes > self.limits.state_bytes):
                    break
                if self._being_read(row, new):
                    continue                             # another row reads its prefix at this moment
                self._waiting.remove(row)
                new.append(row)
                used += row.bytes
        for row in new:
            self._running.append(row)
            self._guarded(partial(self._begin, row), [row])

    def _being_read(self, row: Row, new: Sequence[Row]) -> bool:
        """Whether another row is about to read a prefix that this one could take from the cache."""
        if row.request.prompt_logprobs or not row.keys:
            return False
        return any(not {*row.keys}.isdisjoint(other.keys) for other in chain(self._running, new))

    def _begin(self, row: Row) -> None:
        """The first tokens come from the prefix cache, if they can."""
        self.stats.prompt_tokens += row.to_read
        if row.request.prompt_logprobs:
            self._report_prompt(row, 0, None)
        elif row.keys:
            calls, state = self._cache.find(list(row.keys))
            for _ in range(calls):
                row.keys.popleft()
                row.held += row.plan.popleft()
            self.stats.cached_tokens += row.held
            row.state = state
        if row.limit == 0 and (row.to_read == 0 or not row.request.prompt_logprobs):
            self._end(row, "length")
            return
        if row.state is None:
            row.state = self._states.trim(self._states.blank(1, None), 0)
        self._move(row)

    def _move(self, row: Row) -> None:
        """A row that is in no group enters the one that its next call needs."""
        if row.plan:
            width, capacity = row.plan[0], self.shapes.capacity(row.held + row.plan[0])
            for prefill in self._prefill:
                if prefill.group.free and (prefill.group.width, prefill.group.capacity) == (width, capacity):
                    break
            else:
                prefill = Prefill(RowGroup(self._states, self.shapes.prefill_rows, width, capacity))
                self._prefill.append(prefill)
            prefill.members[prefill.group.put(row.state, row.held)] = row
            row.state = None
            return
        self._enter(row, row.given())

    def _enter(self, row: Row, token: int) -> None:
        capacity = self.shapes.capacity(row.held + 1)
        for group in self._decoding:
            if group.free and group.capacity == capacity:
                break
        else:
            group = DecodeGroup(self._states, self.shapes.rows, capacity)
            self._decoding.append(group)
        group.enter(row, token)

    # Prefill

    def _prefill_some(self) -> None:
        """One call; or all that wait, while no row is being decoded."""
        while self._prefill:
            chosen = max(self._prefill, key=lambda prefill: len(prefill.members) + prefill.waited)
            for prefill in self._prefill:
                prefill.waited += 1
            chosen.waited = 0
            rows = list(chosen.members.values())
            self._guarded(partial(self._read, chosen), rows)
            if not chosen.members:
                self._prefill.remove(chosen)
            if any(group.members for group in self._decoding) or self._waiting:
                return

    def _read(self, prefill: Prefill) -> None:
        group, width = prefill.group, prefill.group.width
        tokens = np.zeros((group.rows, width), np.int64)
        for slot, row in prefill.members.items():
            tokens[slot] = row.tokens[row.held : row.held + width]
        logits = group.step(torch.from_numpy(tokens).to(device_of(self.model)))
        self.stats.prefill_calls += 1
        for slot, row in list(prefill.members.items()):
            if row.request.prompt_logprobs:
                self._report_prompt(row, row.held + 1, logits[slot])
            row.plan.popleft()
            row.held += width
            stays = bool(row.plan) and row.plan[0] == width
            stays &= self.shapes.capacity(row.held + width) == group.capacity
            kept = row.keys.popleft() if row.keys else None
            if kept is not None or not stays:
                row.state = group.peek(slot)
                if kept is not None:
                    self._cache.add(kept, row.state)
            if not stays:
                del prefill.members[slot]
                group.release(slot)
                self._move(row)

    def _report_prompt(self, row: Row, first: int, logits: Tensor | None) -> None:
        """Tokens of the prompt from place `first` on, by the logits (W, V) before each of them."""
        if logits is None:                               # before anything was read
            if not row.hidden:
                self._add(row, [Token(int(row.tokens[0]), prompt=True)])
            return
        targets = row.tokens[first : first + len(logits)]
        numbers = log_probs_of(logits, torch.from_numpy(targets).to(logits.device)).numbers()
        self._add(row, [_token(row, first + place, int(id), *number)
                        for place, (id, number) in enumerate(zip(targets, numbers))])

    # Decoding

    def _decode(self, group: DecodeGroup) -> None:
        for slot, row in list(group.members.items()):
            if row.held + 1 > (group.capacity or row.held + 1):
                row.state, token = group.peek(slot), int(group.tokens[slot])
                group.leave(slot)
                self._enter(row, token)
        if not group.members:
            self._decoding.remove(group)
            return
        chosen = group.decode(lambda row: _uniform(row))
        self.stats.steps += 1
        self._report(list(group.members.items()), chosen, group)

    def _report(self, members: Sequence[tuple[int, Row]], chosen: Chosen, group: DecodeGroup) -> None:
        tokens, possible = chosen.tokens.tolist(), chosen.possible.tolist()
        numbers = None if chosen.log_probs is None else chosen.log_probs.numbers()
        for slot, row in members:
            row.held += 1
            id = tokens[slot]
            number = (None, ()) if numbers is None else numbers[slot]
            if row.held < len(row.tokens):
                if row.request.prompt_logprobs:
                    self._add(row, [_token(row, row.held, id, *number)])
                if row.held == row.to_read:              # only the prompt was to be scored
                    self._end(row, "length")
                continue
            if not possible[slot]:
                why = why_no_answer(self.model, "the model gives no token a probability here, so none can be sampled")
                self._end(row, None, UserError(f"{why}."))
                continue
            row.sampled += 1
            self.stats.generated_tokens += 1
            self._add(row, [_token(row, row.held, id, *number)])
            if id == BOUNDARY and row.request.ends:
                self._end(row, "stop")
            elif row.sampled == row.limit:
                self._end(row, "length")

    # Ends

    def _add(self, row: Row, tokens: list[Token]) -> None:
        row.generation.add(tokens)
        self._news.add(row.generation)

    def _end(self, row: Row, reason: str | None, error: Exception | None = None) -> None:
        if row.done:
            return
        row.done, row.state = True, None
        for slot, group in self._where(row):
            group.members.pop(slot)
            if isinstance(group, DecodeGroup):
                group.samplers.release(slot)
                group.release(slot)
            else:
                group.group.release(slot)
        if row in self._running:
            self._running.remove(row)
        row.generation.finish(reason, error)
        self._news.add(row.generation)

    def _where(self, row: Row) -> Iterator[tuple[int, DecodeGroup | Prefill]]:
        groups: list[DecodeGroup | Prefill] = [*self._decoding, *self._prefill]
        for group in groups:
            for slot, member in list(group.members.items()):
                if member is row:
                    yield slot, group

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
            broken = [group for row in rows for _, group in self._where(row)]
            for row in rows:
                self._end(row, None, EngineError(" ".join(line.split())))
            self._decoding = [group for group in self._decoding if group not in broken]
            self._prefill = [group for group in self._prefill if group not in broken]


def _token(row: Row, place: int, id: int, logprob: float | None, top: Sequence[tuple[int, float]]) -> Token:
    """A token of the prompt or of the answer, at this place of the text."""
    prompt = place < len(row.tokens)
    count = row.request.logprobs
    if (prompt and place == row.hidden) or (not prompt and count is None):
        return Token(id, prompt=prompt)
    return Token(id, logprob, tuple((one, logprob if one == id and logprob is not None else p)
                                    for one, p in top[: count or 0]), prompt)


def _uniform(row: Row) -> float:
    return float(uniforms(row.request.sampling.seed, row.sampled, row.request.row + 1)[-1])


def _private(model: LanguageModel) -> LanguageModel:
    """The model with the same weights but modules of its own: views that watch the other's taps do not disturb it."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared).eval()

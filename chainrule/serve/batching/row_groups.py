"""Row groups: rows that step together, always in calls of the same shape, so that a row's bits depend on it alone.

    decoding    R rows x 1 token       prefill    P rows x W tokens, for a few widths W

A sum in floating point depends on its order, and a matrix product chooses the order by its shape. So every call of the
model has a shape that the request alone decides: a fixed number of rows, of which some may be idle; a fixed number of
tokens; and a KV cache whose capacity depends on the row's own length. What stands in the other rows changes no bit.

Shapes: R rows, W tokens, C capacity in tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.device import CudaGraph
from chainrule.inference.decoding import can_capture, capture_step
from chainrule.inference.forward import device_of, vocabulary_size
from chainrule.model import BOUNDARY, LanguageModel, State, join, map_state, pick, state_bytes, tensors

MIN_CAPACITY = 64                  # tokens; capacities are powers of 2 from here to the context
CPU_ROWS = 4                       # more gain little, and a text alone would wait for idle rows
GPU_ROWS = 64
WIDTHS = 256, 64, 16, 4            # tokens of a prefill call; what is left of a prompt is read in decoding steps
GPU_PREFILL_TOKENS = 1024          # tokens of a prefill call on a GPU, all rows together,
GPU_PREFILL_ROWS = 16              # and the most rows


@dataclass(frozen=True)
class CallShapes:
    """The shapes of all calls of a model. They depend on a request, never on what else is under way."""

    rows: int                      # of a decoding step
    context: int | None            # tokens that a state can hold; None: no limit
    gpu: bool = False              # a row has the capacity of the whole context, as CUDA graphs want it
    widths: tuple[int, ...] = WIDTHS

    def prefill_rows(self, width: int) -> int:
        return min(GPU_PREFILL_ROWS, GPU_PREFILL_TOKENS // width) if self.gpu else 1

    def plan(self, tokens: int) -> list[int]:
        """The widths of the prefill calls of a text of so many tokens; decoding steps read the rest, the last one."""
        plan, left = [], tokens - 1
        for width in self.widths:
            plan += [width] * (left // width)
            left %= width
        return plan

    def capacity(self, tokens: int) -> int | None:
        """The capacity of a row that holds so many tokens."""
        if self.context is None or self.gpu:
            return self.context
        return min(self.context, max(MIN_CAPACITY, 1 << (tokens - 1).bit_length()))


class RowStates:
    """States of single rows: how they are made, and how large they are."""

    def __init__(self, model: LanguageModel):
        self.model = model
        self._known: dict[int, list[list[int | None]]] = {}
        self._bytes: dict[int, int] = {}

    def blank(self, rows: int, capacity: int | None) -> State:
        """The state of rows that have read no token, in memory of its own."""
        state = self.model.start(rows)
        state = state if capacity is None else self.model.reserve(state, capacity)
        return map_state(state, lambda tensor: tensor.clone(memory_format=torch.contiguous_format))

    def trim(self, state: State, tokens: int) -> State:
        """A row without the capacity that so many tokens do not need: `join` and `put` add it again."""
        sizes = iter(self._sizes(tokens))
        return map_state(state, lambda tensor: _corner(tensor, next(sizes)))

    def bytes(self, tokens: int) -> int:
        """Of a row with so many tokens."""
        tokens = self._rounded(tokens)
        if tokens not in self._bytes:
            self._bytes[tokens] = state_bytes(self._reserved(tokens))
        return self._bytes[tokens]

    def _sizes(self, tokens: int) -> list[list[int | None]]:
        """Of the tensors of a row with so many tokens, without the rows; None: it does not depend on the tokens."""
        tokens = self._rounded(tokens)
        if tokens not in self._known:
            least, this, most = (tensors(self._reserved(each)) for each in (0, tokens, MIN_CAPACITY))
            shapes = ((one.shape[1:], two.shape[1:], three.shape[1:]) for one, two, three in zip(least, this, most))
            self._known[tokens] = [[None if a == c else b for a, b, c in zip(*sizes)] for sizes in shapes]
        return self._known[tokens]

    def _reserved(self, tokens: int) -> State:
        state = self.model.start(1)
        return self.model.reserve(state, self._rounded(tokens)) if tokens else state

    def _rounded(self, tokens: int) -> int:
        return min(-(-tokens // MIN_CAPACITY) * MIN_CAPACITY, self.model.context or MIN_CAPACITY)


class RowGroup:
    """R rows of one capacity that read W tokens in each step. A row has a slot until it leaves; others are idle.

    If it is static, its tensors stay where they are: then on a GPU a step is a CUDA graph, which is captured at first,
    while all rows are idle.
    """

    def __init__(self, states: RowStates, rows: int, width: int, capacity: int | None, static: bool = False):
        self.states, self.model, device = states, states.model, device_of(states.model)
        self.rows, self.width, self.capacity = rows, width, capacity
        self.state = states.blank(rows, capacity)
        self.tokens = torch.full((rows, width), BOUNDARY, device=device)     # to be read next
        self.held = [0] * rows                       # tokens of each slot, idle ones too
        self.free = list(range(rows))[::-1]
        self.graphs: dict[bool, CudaGraph | None] = {}
        self.static = static
        self._logits: Tensor | None = None           # where the graph puts them
        if static and can_capture(self.tokens):
            for logits in (True,) if width == 1 else (False, True):
                self._read(logits)                   # the warm-up, after which no row holds a token again
                write_back(self.state, states.blank(rows, capacity))
                self.graphs[logits] = self._capture(logits)

    def put(self, state: State, tokens: int) -> int:
        """A row that holds so many tokens gets a slot."""
        slot = self.free.pop()
        if self.rows == 1:                           # also for a model whose state grows by itself
            self.state = self.states.blank(1, self.capacity)
        self._copy(state, slot)
        self.held[slot] = tokens
        return slot

    def take(self, slot: int) -> State:
        """The row of a slot, which is idle from now on."""
        row = self.peek(slot)
        self.release(slot)
        return row

    def peek(self, slot: int) -> State:
        """A copy of the row of a slot."""
        tokens = self.held[slot]
        row = map_state(self.state, lambda tensor: tensor[slot : slot + 1])
        return map_state(self.states.trim(row, tokens), lambda tensor: tensor.clone())

    def release(self, slot: int) -> None:
        self.free.append(slot)

    def step(self, logits: bool = True) -> Tensor | None:
        """Every row reads its tokens, idle ones too -> (R, W, V), if logits are wanted."""
        self._rewind()
        graph = self.graphs.get(logits)
        if graph is None:
            found = self._read(logits)
        else:
            graph.replay(())
            found = self._logits if logits else None
        self.held = [held + self.width for held in self.held]
        return found

    def _read(self, logits: bool) -> Tensor | None:
        found = None
        if logits:
            found, state = self.model.step(self.tokens, self.state)
        else:
            state = self.model.next_logits(self.tokens, self.state)[1]
        if self.static:
            write_back(self.state, state)
        else:
            self.state = state
        return found

    def _capture(self, logits: bool) -> CudaGraph | None:
        def step() -> list[Tensor]:
            if not logits:
                return list(tensors(self.model.next_logits(self.tokens, self.state)[1]))
            found, state = self.model.step(self.tokens, self.state)
            self._logits = found if self._logits is None else self._logits.copy_(found)    # always the same place
            return list(tensors(state))

        return capture_step(step, [], tensors(self.state))

    def _rewind(self) -> None:
        """Idle rows read tokens too, and begin again where their capacity is full."""
        if self.capacity is None:
            return
        for slot in self.free:
            if self.held[slot] + self.width > self.capacity:
                self._copy(self.states.trim(self.states.blank(1, None), 0), slot)
                self.held[slot] = 0

    def _copy(self, state: State, slot: int) -> None:
        """Writes a row into a slot. What was there before lies after the row's tokens, where it is masked."""
        own, new = list(tensors(self.state)), list(tensors(state))
        if any(n > m for to, part in zip(own, new) for n, m in zip(part.shape[1:], to.shape[1:])):
            self.state = join([self.state, state])   # a model that has no `reserve`: its state grows by itself
            places = torch.arange(self.rows)
            places[slot] = self.rows
            self.state = pick(self.state, places)
            return
        for to, part in zip(own, new):
            _corner(to[slot : slot + 1], part.shape[1:]).copy_(part)


def write_back(static: State, new: State) -> None:
    """Copies a state into tensors that stay where they are."""
    for to, part in zip(tensors(static), tensors(new), strict=True):
        if to.data_ptr() != part.data_ptr():
            to.copy_(part)


def to_pinned(array: NDArray[Any]) -> Tensor:
    """A copy from which a GPU can read while the host goes on."""
    tensor = torch.from_numpy(array.copy())
    return tensor.pin_memory() if torch.cuda.is_available() else tensor


def _corner(tensor: Tensor, sizes: Sequence[int | None]) -> Tensor:
    """A view of the first numbers of every axis but that of the rows; None: of all."""
    return tensor[(slice(None), *(slice(size) for size in sizes))]


@torch.inference_mode()
def rows_agree(model: LanguageModel, rows: int) -> bool:
    """Whether a row of a decoding step gets the same bits in every slot, whatever is in the others.

    Most matrix products do so, but not all. A model that has no `reserve`, whose state grows as its longest row needs,
    does not.
    """
    vocab, random = vocabulary_size(model), torch.Generator().manual_seed(1)
    capacity = None if model.context is None else min(MIN_CAPACITY, model.context)
    tokens = torch.randint(vocab, (rows, 3), generator=random)
    every = []
    for slot in range(rows):
        state = RowStates(model).blank(rows, capacity)
        shapes = [part.shape for part in tensors(state)]
        others = torch.randint(vocab, (rows, 3), generator=random)
        others[slot] = tokens[0]
        logits = []
        for column in others[:, : model.context].to(device_of(model)).unbind(1):
            some, state = model.step(column[:, None], state)
            logits.append(some[slot].nan_to_num())
        every.append(torch.stack(logits))
        if [part.shape for part in tensors(state)] != shapes:
            return False
    return all(torch.equal(one, every[0]) for one in every)


def choose_shapes(model: LanguageModel, rows: int | None, state_bytes: int) -> CallShapes:
    """`rows`: of a decoding step; None: by the device, and so that their states fit into so many bytes."""
    if device_of(model).type == "cuda":
        rows = rows or GPU_ROWS
        each = RowStates(model).bytes(model.context or 1)
        while rows > 1 and rows * each > state_bytes:
            rows //= 2
        return CallShapes(rows, model.context, gpu=True)
    rows = rows or CPU_ROWS
    while rows > 1 and not rows_agree(model, rows):
        rows //= 2
    return CallShapes(rows, model.context)

"""Sampling a token in two kernels: softmax masses of blocks of the vocabulary; then the block and token of a number.

The mass of a block is stored relative to its highest logit, so that no kernel waits for the highest logit of all. In a
CUDA graph, the second kernel also finds its number by a counter in the GPU's memory, and writes the token where the
next step reads it: so there are no kernels between two steps.

Shapes: B rows, V vocabulary, N blocks, T steps.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024         # tokens in a block


@triton.jit
def _masses(logits, highest, tokens, valid, seen, scale, penalty):
    """Of one block: the mass of each token where one with the logit `highest` has 1."""
    value = tl.load(logits + tokens, mask=valid, other=float("-inf")).to(tl.float32)
    if seen is not None:
        value -= penalty * tl.load(seen + tokens, mask=valid, other=0).to(tl.float32)
    if highest is None:
        highest = tl.max(value, 0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    return tl.exp2((value - highest) * scale), highest


@triton.jit
def _sum_blocks(logits, seen, highests, masses, place, row_stride, vocab, scale, penalty, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    if place is not None:                                   # `_draw` reads it, in the next kernel
        first = (row == 0) & (block == 0)
        tl.store(place, tl.load(place, mask=first, other=0) + 1, mask=first)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    logits += row.to(tl.int64) * row_stride
    if seen is not None:
        seen += row.to(tl.int64) * vocab
    mass, highest = _masses(logits, None, tokens, tokens < vocab, seen, scale, penalty)
    tl.store(highests + row * blocks + block, highest)
    tl.store(masses + row * blocks + block, tl.sum(mass.to(tl.float64), 0))


@triton.jit
def _find(mass, point, SIZE: tl.constexpr):
    """The first index whose cumulative mass exceeds the point, or the last that has any mass; -1: none has. And the
    mass before it."""
    index = tl.arange(0, SIZE)
    cumulative = tl.cumsum(mass, 0)
    past = tl.min(tl.where((cumulative > point) & (mass > 0), index, SIZE), 0)
    last = tl.max(tl.where(mass > 0, index, -1), 0)
    found = tl.where(past < SIZE, past, last)
    before = tl.sum(tl.where(index == found, cumulative - mass, 0.0), 0)
    return found, before


@triton.jit(do_not_specialize_on_alignment=["uniform"])    # it may be one row of a larger tensor
def _draw(
    logits, seen, highests, masses, uniform, token, possible, place, columns, ended, end_of_turn,
    row_stride, vocab, scale, penalty, blocks, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if place is not None:
        before_step = tl.load(place) * tl.num_programs(0)   # numbers and tokens of the steps before
        uniform += before_step
    block = tl.arange(0, BLOCKS)
    valid = block < blocks
    highest = tl.load(highests + row * blocks + block, mask=valid, other=float("-inf"))
    mass = tl.load(masses + row * blocks + block, mask=valid, other=0.0)
    top = tl.max(tl.where(mass > 0, highest, float("-inf")), 0)
    factor = tl.where(mass > 0, tl.exp2((highest - top) * scale), 0.0).to(tl.float64)
    scaled = mass * factor
    total = tl.sum(scaled, 0)
    point = tl.load(uniform + row).to(tl.float64) * total
    found, before = _find(scaled, point, BLOCKS)
    chosen = tl.maximum(found, 0)
    point = (point - before) / tl.sum(tl.where(block == chosen, factor, 0.0), 0)

    tokens = chosen * BLOCK + tl.arange(0, BLOCK)
    logits += row.to(tl.int64) * row_stride
    if seen is not None:
        seen += row.to(tl.int64) * vocab
    inside, _ = _masses(logits, tl.load(highests + row * blocks + chosen), tokens, tokens < vocab, seen, scale, penalty)
    number, _ = _find(inside.to(tl.float64), tl.maximum(point, 0.0), BLOCK)
    drawn = (chosen * BLOCK + tl.maximum(number, 0)).to(tl.int64)
    can = total > 0
    if ended is not None:                                   # a row that has ended repeats the boundary, 0
        over = tl.load(ended + row)
        drawn = tl.where(over, 0, drawn)
        tl.store(ended + row, over | (drawn == 0) | (drawn == end_of_turn))
    if place is not None:
        can = can & tl.load(possible + row)
        tl.store(columns + before_step + row, drawn)
    tl.store(token + row, drawn)
    tl.store(possible + row, can)


def draw_tokens(
    logits: Tensor, uniform: Tensor, temperature: float = 1.0, seen: Tensor | None = None, penalty: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(B, V), (B,) -> (B,), (B,): the token that each uniform number selects, and whether there is one."""
    token = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    possible = torch.empty_like(token, dtype=torch.bool)
    _launch(logits, uniform, token, possible, temperature, seen, penalty)
    return token, possible


def draw_in_place(
    logits: Tensor, numbers: Tensor, place: Tensor, columns: Tensor, token: Tensor, possible: Tensor,
    ended: Tensor | None, end_of_turn: int | None, temperature: float,
) -> None:  # fmt: skip
    """The same for the next step of a block: `place` (1,) grows by 1 and is the row of `numbers` (T, B) to draw by, and
    of `columns` (T, B), where the tokens are written, as in `token`. `possible` stays False where it was.

    `ended` (B,): rows that repeat the boundary, among which are then those that have drawn it, or `end_of_turn`.
    """
    _launch(logits, numbers, token, possible, temperature, None, 1.0, place, columns, ended, end_of_turn)


def _launch(
    logits: Tensor, uniform: Tensor, token: Tensor, possible: Tensor, temperature: float, seen: Tensor | None,
    penalty: float, place: Tensor | None = None, columns: Tensor | None = None, ended: Tensor | None = None,
    end_of_turn: int | None = None,
) -> None:  # fmt: skip
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    highests = logits.new_empty(rows, blocks, dtype=torch.float32)
    masses = torch.empty_like(highests, dtype=torch.float64)
    scale = math.log2(math.e) / max(temperature, torch.finfo(torch.float32).tiny)
    shape = (logits.stride(0), vocab, scale, math.log(penalty), blocks)
    _sum_blocks[(rows, blocks)](logits, seen, highests, masses, place, *shape, BLOCK=BLOCK, num_warps=4)
    _draw[(rows,)](
        logits, seen, highests, masses, uniform, token, possible, place, columns, ended,
        -1 if end_of_turn is None else end_of_turn, *shape,
        BLOCKS=triton.next_power_of_2(blocks), BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip

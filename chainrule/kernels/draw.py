"""Sampling a token in two kernels: softmax masses of blocks of the vocabulary; then the block and token of a number.

The mass of a block is stored relative to its highest logit, so that no kernel waits for the highest logit of all.

Shapes: B rows, V vocabulary, N blocks.
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
def _sum_blocks(logits, seen, highests, masses, row_stride, vocab, scale, penalty, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
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
    logits, seen, highests, masses, uniform, token, possible, row_stride, vocab, scale, penalty, blocks,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
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
    tl.store(token + row, (chosen * BLOCK + tl.maximum(number, 0)).to(tl.int64))
    tl.store(possible + row, total > 0)


def draw_tokens(
    logits: Tensor, uniform: Tensor, temperature: float = 1.0, seen: Tensor | None = None, penalty: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(B, V), (B,) -> (B,), (B,): the token that each uniform number selects, and whether there is one."""
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    highests = logits.new_empty(rows, blocks, dtype=torch.float32)
    masses = torch.empty_like(highests, dtype=torch.float64)
    token = torch.empty(rows, dtype=torch.long, device=logits.device)
    possible = torch.empty_like(token, dtype=torch.bool)
    scale = math.log2(math.e) / max(temperature, torch.finfo(torch.float32).tiny)
    shape = (logits.stride(0), vocab, scale, math.log(penalty), blocks)
    _sum_blocks[(rows, blocks)](logits, seen, highests, masses, *shape, BLOCK=BLOCK, num_warps=4)
    _draw[(rows,)](
        logits, seen, highests, masses, uniform, token, possible, *shape,
        BLOCKS=triton.next_power_of_2(blocks), BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return token, possible

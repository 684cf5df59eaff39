"""The die in two kernels: the vocabulary in blocks, each with its mass; then the block and the face that hold a number.

The mass of a block is kept beside its highest logit, so that no kernel need wait for the highest of all.

Shapes: B rows, V vocabulary, N blocks.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024         # tokens in a block
MOST = 1 << 20       # tokens of the largest vocabulary


@triton.jit
def _shares(logits, most, face, real, seen, heat, penalty):
    """Of one block: the mass of each face where one with the logit `most` has 1."""
    value = tl.load(logits + face, mask=real, other=float("-inf")).to(tl.float32)
    if seen is not None:
        value -= penalty * tl.load(seen + face, mask=real, other=0).to(tl.float32)
    if most is None:
        most = tl.max(value, 0)
    most = tl.where(most == float("-inf"), 0.0, most)
    return tl.exp2((value - most) * heat), most


@triton.jit
def _weigh(logits, seen, most, mass, row_stride, vocab, heat, penalty, blocks, BLOCK: tl.constexpr):
    row, block = tl.program_id(0), tl.program_id(1)
    face = block * BLOCK + tl.arange(0, BLOCK)
    logits += row.to(tl.int64) * row_stride
    if seen is not None:
        seen += row.to(tl.int64) * vocab
    share, highest = _shares(logits, None, face, face < vocab, seen, heat, penalty)
    tl.store(most + row * blocks + block, highest)
    tl.store(mass + row * blocks + block, tl.sum(share.to(tl.float64), 0))


@triton.jit
def _holder(mass, point, BLOCK: tl.constexpr):
    """The first whose shares go past the point, or the last that has any; -1 where none has. And what lies before."""
    number = tl.arange(0, BLOCK)
    shares = tl.cumsum(mass, 0)
    past = tl.min(tl.where((shares > point) & (mass > 0), number, BLOCK), 0)
    last = tl.max(tl.where(mass > 0, number, -1), 0)
    holder = tl.where(past < BLOCK, past, last)
    before = tl.sum(tl.where(number == holder, shares - mass, 0.0), 0)
    return holder, before


@triton.jit(do_not_specialize_on_alignment=["uniform"])    # it may be a row of many
def _fall(
    logits, seen, most, mass, uniform, token, possible, row_stride, vocab, heat, penalty, blocks,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    real = block < blocks
    highest = tl.load(most + row * blocks + block, mask=real, other=float("-inf"))
    masses = tl.load(mass + row * blocks + block, mask=real, other=0.0)
    top = tl.max(tl.where(masses > 0, highest, float("-inf")), 0)
    scale = tl.where(masses > 0, tl.exp2((highest - top) * heat), 0.0).to(tl.float64)
    weighed = masses * scale
    total = tl.sum(weighed, 0)
    point = tl.load(uniform + row).to(tl.float64) * total
    holder, before = _holder(weighed, point, BLOCKS)
    chosen = tl.maximum(holder, 0)
    point = (point - before) / tl.sum(tl.where(block == chosen, scale, 0.0), 0)

    face = chosen * BLOCK + tl.arange(0, BLOCK)
    logits += row.to(tl.int64) * row_stride
    if seen is not None:
        seen += row.to(tl.int64) * vocab
    share, _ = _shares(logits, tl.load(most + row * blocks + chosen), face, face < vocab, seen, heat, penalty)
    number, _ = _holder(share.to(tl.float64), tl.maximum(point, 0.0), BLOCK)
    tl.store(token + row, (chosen * BLOCK + tl.maximum(number, 0)).to(tl.int64))
    tl.store(possible + row, total > 0)


def draw_tokens(
    logits: Tensor, uniform: Tensor, temperature: float = 1.0, seen: Tensor | None = None, penalty: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(B, V), (B,) -> (B,), (B,): the token that each number falls on, and whether there is one."""
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    most = logits.new_empty(rows, blocks, dtype=torch.float32)
    mass = torch.empty_like(most, dtype=torch.float64)
    token = torch.empty(rows, dtype=torch.long, device=logits.device)
    possible = torch.empty_like(token, dtype=torch.bool)
    heat = math.log2(math.e) / max(temperature, torch.finfo(torch.float32).tiny)
    shape = (logits.stride(0), vocab, heat, math.log(penalty), blocks)
    _weigh[(rows, blocks)](logits, seen, most, mass, *shape, BLOCK=BLOCK, num_warps=4)
    _fall[(rows,)](
        logits, seen, most, mass, uniform, token, possible, *shape,
        BLOCKS=triton.next_power_of_2(blocks), BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return token, possible

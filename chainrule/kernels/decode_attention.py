"""Attention of one new token a row, which reads what the row has and no more.

A program has one head of queries of one row. It norms and turns the new query and key, writes key and value into their
place in the cache, and mixes the values behind that place, a block of keys at a time. Each key of a block begins a
running softmax of its own (Milakov and Gimelshein 2018), so that threads do not wait for each other before the end.
Where rows are few, several programs share a head, each with a split of its keys, and the reader weighs their parts.

Shapes: B rows, H heads of queries, G heads of keys, C room, S splits, N keys of a block, d numbers in a head.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chainrule.kernels import launch_options
from chainrule.kernels.add_norm import NONE, Norm, normed

SHAPES = {32: (128, 4), 64: (64, 4), 128: (64, 8)}    # by d: keys of a block, and warps; so a key stays in one warp
LOG2E = math.log2(math.e)
STAGES = tl.constexpr(3)     # blocks under way at once, from memory
LOW = tl.constexpr(-1e30)    # a score below all scores, and still a number


class Parts(NamedTuple):
    """Mixtures of splits of the keys, not yet divided by their weights; or a whole, which needs none."""

    mixed: Tensor                    # (B, S, H, d) float32; (B, H·d)
    most: Tensor | None = None       # (B, S, H) the highest score of a key in it, in powers of 2
    total: Tensor | None = None      # (B, S, H) the weights of all, where that key has 1

    @property
    def splits(self) -> int:
        return 1 if self.most is None else self.most.shape[1]


@triton.jit
def _prepared(x, gains, shift, cos, sin, epsilon, SIZE: tl.constexpr, NORM: tl.constexpr):
    """(1, d) float32: normed and turned, each as it is asked for."""
    number = tl.arange(0, SIZE)[None, :]
    here = number < SIZE
    vector = tl.load(x + number).to(tl.float32)
    if NORM is not None:
        vector = normed(vector, gains, shift, number, here, SIZE, epsilon, NORM)
    if cos is not None:    # what stands opposite is read and normed once more, rather than sent around
        across = (number + SIZE // 2) % SIZE
        other = tl.load(x + across).to(tl.float32)
        if NORM is not None:
            other = normed(other, gains, shift, across, here, SIZE, epsilon, NORM)
        vector = vector * tl.load(cos + number) + other * tl.load(sin + number)
    return vector


@triton.jit
def _attend(
    projected, keys, values, length, cos, sin, q_gains, q_shift, k_gains, k_shift, out, most, total,
    row_stride, head_stride, scale, epsilon, window,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    NORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    head, row, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group = head // (HEADS // GROUPS)
    place = tl.load(length + row).to(tl.int32)
    number = tl.arange(0, SIZE)[None, :]
    if cos is not None:
        cos += place * SIZE
        sin += place * SIZE
    x = projected + row.to(tl.int64) * ((HEADS + 2 * GROUPS) * SIZE)
    query = _prepared(x + head * SIZE, q_gains, q_shift, cos, sin, epsilon, SIZE, NORM)
    key = _prepared(x + (HEADS + group) * SIZE, k_gains, k_shift, cos, sin, epsilon, SIZE, NORM)
    key = key.to(keys.dtype.element_ty)
    value = tl.load(x + (HEADS + GROUPS + group) * SIZE + number)
    first = row.to(tl.int64) * row_stride + group.to(tl.int64) * head_stride
    if (split == 0) & (head % (HEADS // GROUPS) == 0):
        tl.store(keys + first + place * SIZE + number, key)
        tl.store(values + first + place * SIZE + number, value)

    query = query.to(keys.dtype.element_ty).to(tl.float32) * scale
    best = tl.full((BLOCK,), LOW, tl.float32)                     # (N,) of the keys so far in each place of the block
    weight = tl.zeros((BLOCK,), tl.float32)
    mixed = tl.zeros((BLOCK, SIZE), tl.float32)
    begin = tl.maximum(place + 1 - window, 0)
    count = tl.cdiv(place - begin, SPLITS)
    begin += split * count
    end = tl.minimum(begin + count, place)
    for at in tl.range(begin, end, BLOCK, num_stages=STAGES):
        there = at + tl.arange(0, BLOCK)
        seen = there < end
        where = first + tl.minimum(there, end - 1)[:, None] * SIZE + number    # no mask: what is read is always there
        some_keys, some_values = tl.load(keys + where), tl.load(values + where)
        score = tl.where(seen, tl.sum(query * some_keys.to(tl.float32), 1), LOW)
        higher = tl.maximum(best, score)
        fade, take = tl.exp2(best - higher), tl.exp2(score - higher)    # what is not seen is LOW, and fades in the end
        weight = weight * fade + take
        mixed = mixed * fade[:, None] + take[:, None] * some_values.to(tl.float32)
        best = higher

    own = tl.where(split == 0, tl.sum(tl.sum(query * key.to(tl.float32), 1), 0), LOW)    # the new key, once
    highest = tl.maximum(tl.max(best, 0), own)
    fade, take = tl.exp2(best - highest), tl.exp2(own - highest)
    whole = tl.sum(weight * fade, 0) + take
    result = tl.sum(mixed * fade[:, None], 0)[None, :] + take * value.to(tl.float32)
    to = (row * SPLITS + split) * HEADS + head
    if SPLITS == 1:
        result /= whole
    else:
        tl.store(most + to, highest)
        tl.store(total + to, whole)
    tl.store(out + to * SIZE + number, result)


def attend(
    projected: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    *,
    norms: tuple[Norm, Norm] = (NONE, NONE),
    rope: tuple[Tensor, Tensor] | None = None,
    window: int | None = None,
    splits: int = 1,
) -> Parts:
    """(B, (H + 2G)·d) queries, keys and values of a token a row; caches (B, G, C, d), of which `length` (B,) are read.

    `turns`: (C, d) each, cos and sin of every place, as positions.turns has them.
    """
    rows, groups, room, size = keys.shape
    heads = projected.shape[1] // size - 2 * groups
    parts = _empty(projected, rows, splits, heads, size)
    of_query, of_key = norms
    cos, sin = rope or (None, None)
    block, warps = SHAPES[size]
    _attend[(heads, rows, splits)](
        projected, keys, values, length, cos, sin, of_query.gains, of_query.shift, of_key.gains, of_key.shift, *parts,
        keys.stride(0), keys.stride(1), LOG2E / math.sqrt(size), of_query.epsilon, window or room + 1,
        HEADS=heads, GROUPS=groups, SIZE=size, BLOCK=block, SPLITS=splits, NORM=of_query.kind, num_warps=warps,
        **launch_options(),
    )  # fmt: skip
    return parts


def _empty(like: Tensor, rows: int, splits: int, heads: int, size: int) -> Parts:
    if splits == 1:
        return Parts(like.new_empty(rows, heads * size))
    most = like.new_empty(rows, splits, heads, dtype=torch.float32)
    return Parts(most.new_empty(rows, splits, heads, size), most, torch.empty_like(most))

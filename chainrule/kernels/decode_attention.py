"""Attention of one new token per row over the KV cache. It reads the keys that a row has, not the unused capacity.

A program has one query head of one row. It applies QK norm and RoPE to the new query and key, writes the new key and
value into the cache, and attends to the keys so far, one block at a time. Each position in a block has a running
softmax of its own (Milakov and Gimelshein 2018), so that threads wait for each other only at the end. For a small batch
several programs share a head, each with a split of its keys, and kernels/linear.py combines their parts. The cache of a
local or sliding layer is a ring (layers/kv_cache.py): position p is in slot p mod C.

Shapes: B rows, H query heads, G key/value heads, C capacity, S splits, N keys of a block, d numbers in a head.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from chainrule.kernels import launch_options
from chainrule.kernels.add_norm import NO_NORM, Norm, norm_rows

SHAPES = {32: (128, 4), 64: (64, 4), 128: (64, 8)}    # by d: keys of a block, and warps; so a key stays in one warp
LOG2E = math.log2(math.e)
STAGES = tl.constexpr(3)     # blocks that are loaded at the same time
LOW = tl.constexpr(-1e30)    # below all scores, and finite


class AttentionParts(NamedTuple):
    """The output of attention (B, H·d); or those of splits of the keys, not yet divided by their total weights."""

    mixed: Tensor                             # (B, H·d); of splits (B, S, H, d) float32
    highest_score: Tensor | None = None       # (B, S, H) of the keys of a split, to the base 2
    total_weight: Tensor | None = None        # (B, S, H) of the keys of a split, relative to the highest score

    @property
    def splits(self) -> int:
        return 1 if self.highest_score is None else self.highest_score.shape[1]


@triton.jit
def _norm_and_rotate(x, weight, bias, cos, sin, epsilon, SIZE: tl.constexpr, NORM: tl.constexpr):
    """(1, d) float32: with QK norm and RoPE, each if it is given."""
    column = tl.arange(0, SIZE)[None, :]
    valid = column < SIZE
    vector = tl.load(x + column).to(tl.float32)
    if NORM is not None:
        vector = norm_rows(vector, weight, bias, column, valid, SIZE, epsilon, NORM)
    if cos is not None:    # the other half is loaded and normed again, which is faster than to exchange it
        opposite = (column + SIZE // 2) % SIZE
        other = tl.load(x + opposite).to(tl.float32)
        if NORM is not None:
            other = norm_rows(other, weight, bias, opposite, valid, SIZE, epsilon, NORM)
        vector = vector * tl.load(cos + column) + other * tl.load(sin + column)
    return vector


@triton.jit
def load_block(keys, values, first, at, end, capacity, SIZE: tl.constexpr, BLOCK: tl.constexpr, LAYER: tl.constexpr):
    """(N, d) keys and values from position `at` on; those from `end` on are repeated, and must be masked."""
    place = tl.maximum(tl.minimum(at + tl.arange(0, BLOCK), end - 1), 0)       # no mask: the address is always valid
    if LAYER != "full":
        place %= capacity
    where = first + place[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    return tl.load(keys + where), tl.load(values + where)


@triton.jit
def _take(query, some_keys, some_values, visible, best, weight_sum, mixed):
    """The running softmax of each position in a block, after one more block."""
    score = tl.where(visible, tl.sum(query * some_keys.to(tl.float32), 1), LOW)
    new_best = tl.maximum(best, score)
    fade, take = tl.exp2(best - new_best), tl.exp2(score - new_best)           # LOW gets weight 0 in the end
    mixed = mixed * fade[:, None] + take[:, None] * some_values.to(tl.float32)
    return new_best, weight_sum * fade + take, mixed


@triton.jit
def attend(
    packed, keys, values, position, cos, sin, q_weight, q_bias, k_weight, k_bias, out, highest_score, total_weight,
    early_keys, early_values, head, row, split, row_stride, head_stride, scale, epsilon, capacity,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    NORM: tl.constexpr, LAYER: tl.constexpr,
):  # fmt: skip
    """Of one query head of one row, over a split of its keys: all that a program does. `early_keys` and `early_values`:
    the first block of the split, if it has been loaded before."""
    group = head // (HEADS // GROUPS)
    slot, begin = position, 0
    if LAYER != "full":
        slot = position % capacity
        begin = position - slot if LAYER == "local" else tl.maximum(position + 1 - capacity, 0)
    column = tl.arange(0, SIZE)[None, :]
    if cos is not None:
        cos += position * SIZE
        sin += position * SIZE
    x = packed + row.to(tl.int64) * ((HEADS + 2 * GROUPS) * SIZE)
    query = _norm_and_rotate(x + head * SIZE, q_weight, q_bias, cos, sin, epsilon, SIZE, NORM)
    key = _norm_and_rotate(x + (HEADS + group) * SIZE, k_weight, k_bias, cos, sin, epsilon, SIZE, NORM)
    key = key.to(keys.dtype.element_ty)
    value = tl.load(x + (HEADS + GROUPS + group) * SIZE + column)
    first = row.to(tl.int64) * row_stride + group.to(tl.int64) * head_stride
    if (split == 0) & (head % (HEADS // GROUPS) == 0):
        tl.store(keys + first + slot * SIZE + column, key)
        tl.store(values + first + slot * SIZE + column, value)

    query = query.to(keys.dtype.element_ty).to(tl.float32) * scale
    best = tl.full((BLOCK,), LOW, tl.float32)                # (N,) the highest score so far, by position in a block
    weight_sum = tl.zeros((BLOCK,), tl.float32)
    mixed = tl.zeros((BLOCK, SIZE), tl.float32)
    count = tl.cdiv(position - begin, SPLITS)
    begin += split * count
    end = tl.minimum(begin + count, position)
    if early_keys is not None:
        visible = begin + tl.arange(0, BLOCK) < end
        best, weight_sum, mixed = _take(query, early_keys, early_values, visible, best, weight_sum, mixed)
        begin += BLOCK
    for at in tl.range(begin, end, BLOCK, num_stages=STAGES if early_keys is None else 1):
        some_keys, some_values = load_block(keys, values, first, at, end, capacity, SIZE, BLOCK, LAYER)
        visible = at + tl.arange(0, BLOCK) < end
        best, weight_sum, mixed = _take(query, some_keys, some_values, visible, best, weight_sum, mixed)

    own = tl.where(split == 0, tl.sum(tl.sum(query * key.to(tl.float32), 1), 0), LOW)    # the new key, once
    highest = tl.maximum(tl.max(best, 0), own)
    fade, take = tl.exp2(best - highest), tl.exp2(own - highest)
    whole = tl.sum(weight_sum * fade, 0) + take
    result = tl.sum(mixed * fade[:, None], 0)[None, :] + take * value.to(tl.float32)
    to = (row * SPLITS + split) * HEADS + head
    if SPLITS == 1:
        result /= whole
    else:
        tl.store(highest_score + to, highest)
        tl.store(total_weight + to, whole)
    tl.store(out + to * SIZE + column, result)


@triton.jit
def _decode_attention(
    packed, keys, values, length, cos, sin, q_weight, q_bias, k_weight, k_bias, out, highest_score, total_weight,
    row_stride, head_stride, scale, epsilon, capacity,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    NORM: tl.constexpr, LAYER: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(1)
    attend(
        packed, keys, values, tl.load(length + row).to(tl.int32), cos, sin, q_weight, q_bias, k_weight, k_bias,
        out, highest_score, total_weight, None, None, tl.program_id(0), row, tl.program_id(2),
        row_stride, head_stride, scale, epsilon, capacity, HEADS, GROUPS, SIZE, BLOCK, SPLITS, NORM, LAYER,
    )  # fmt: skip


def decode_attention(
    packed: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    *,
    norms: tuple[Norm, Norm] = (NO_NORM, NO_NORM),
    rope: tuple[Tensor, Tensor] | None = None,
    layer: str = "full",
    splits: int = 1,
) -> AttentionParts:
    """(B, (H + 2G)·d) query, key and value of one token per row; caches (B, G, C, d), `length` (B,) tokens so far.

    `layer`: full, local or sliding; the window or the block of the last two is the capacity of their ring.
    `rope`: cos and sin of every position, (C, d) each, as positions.rope_tables computes them.
    """
    rows, groups, capacity, size = keys.shape
    heads = packed.shape[1] // size - 2 * groups
    parts = _empty(packed, rows, splits, heads, size)
    query_norm, key_norm = norms
    cos, sin = rope or (None, None)
    block, warps = SHAPES[size]
    _decode_attention[(heads, rows, splits)](
        packed, keys, values, length, cos, sin,
        query_norm.weight, query_norm.bias, key_norm.weight, key_norm.bias, *parts,
        keys.stride(0), keys.stride(1), LOG2E / math.sqrt(size), query_norm.epsilon, capacity,
        HEADS=heads, GROUPS=groups, SIZE=size, BLOCK=block, SPLITS=splits, NORM=query_norm.kind, LAYER=layer,
        num_warps=warps, **launch_options(),
    )  # fmt: skip
    return parts


def _empty(like: Tensor, rows: int, splits: int, heads: int, size: int) -> AttentionParts:
    if splits == 1:
        return AttentionParts(like.new_empty(rows, heads * size))
    highest = like.new_empty(rows, splits, heads, dtype=torch.float32)
    return AttentionParts(highest.new_empty(rows, splits, heads, size), highest, torch.empty_like(highest))

"""QK norm and RoPE in one kernel, forward and backward: queries, keys and values of all heads from one packed product.

    q, k = rope(norm(part of the product))        v = part of the product

The backward kernel computes the normed values again instead of keeping them.

Shapes: B rows, T tokens, H query heads, G key/value heads, d numbers in a head.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_PROGRAMS = 8192      # that share the tokens


@triton.jit
def _halves(packed, head, column, valid, HALF: tl.constexpr, epsilon, NORM: tl.constexpr):
    """Both halves of each head, normed, and the rstd of each head."""
    left = tl.load(packed + head * (2 * HALF) + column, mask=valid, other=0.0).to(tl.float32)
    right = tl.load(packed + head * (2 * HALF) + HALF + column, mask=valid, other=0.0).to(tl.float32)
    rstd = tl.full((left.shape[0],), 1.0, tl.float32)
    if NORM is not None:
        if NORM == "layer":
            mean = (tl.sum(left + right, 1) / (2 * HALF))[:, None]
            left -= mean
            right -= mean
        rstd = tl.rsqrt(tl.sum(left * left + right * right, 1) / (2 * HALF) + epsilon)
    return left * rstd[:, None], right * rstd[:, None], rstd


@triton.jit
def _copy(source, to, head, column, G: tl.constexpr, HALF: tl.constexpr):
    at = head * (2 * HALF) + column
    tl.store(to + at, tl.load(source + at, mask=head < G), mask=head < G)
    tl.store(to + at + HALF, tl.load(source + at + HALF, mask=head < G), mask=head < G)


@triton.jit
def _angle(cos, sin, row, tokens, column, HALF: tl.constexpr):
    """cos and sin for the numbers of half a head, of one token. The tables repeat after `tokens` rows."""
    at = (row % tokens) * (2 * HALF) + HALF + column
    return tl.load(cos + at).to(tl.float32), tl.load(sin + at).to(tl.float32)


@triton.jit
def _qk_norm_rope(
    packed, cos, sin, queries, keys, values, rows, tokens, epsilon,
    H: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    head, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, HALF)[None, :]
    is_query_or_key, is_query = head < H + G, head < H
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        here = packed + row * ((H + 2 * G) * 2 * HALF)
        left, right, _ = _halves(here, head, column, is_query_or_key, HALF, epsilon, NORM)
        if cos is not None:
            c, s = _angle(cos, sin, row, tokens, column, HALF)
            left, right = left * c - right * s, right * c + left * s
        at = queries + row * (H * 2 * HALF) + head * (2 * HALF) + column
        tl.store(at, left, mask=is_query)
        tl.store(at + HALF, right, mask=is_query)
        at = keys + row * (G * 2 * HALF) + (head - H) * (2 * HALF) + column
        tl.store(at, left, mask=is_query_or_key & (head >= H))
        tl.store(at + HALF, right, mask=is_query_or_key & (head >= H))
        _copy(here + (H + G) * (2 * HALF), values + row * (G * 2 * HALF), head, column, G, HALF)


@triton.jit
def _qk_norm_rope_backward(
    grad_queries, grad_keys, grad_values, packed, cos, sin, grad_packed, rows, tokens, epsilon,
    H: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    head, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, HALF)[None, :]
    is_query_or_key, is_query = head < H + G, head < H
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        query_at = grad_queries + row * (H * 2 * HALF) + head * (2 * HALF) + column
        key_at = grad_keys + row * (G * 2 * HALF) + (head - H) * (2 * HALF) + column
        left = tl.load(query_at, mask=is_query, other=0.0).to(tl.float32)
        right = tl.load(query_at + HALF, mask=is_query, other=0.0).to(tl.float32)
        left += tl.load(key_at, mask=is_query_or_key & (head >= H), other=0.0).to(tl.float32)
        right += tl.load(key_at + HALF, mask=is_query_or_key & (head >= H), other=0.0).to(tl.float32)
        if cos is not None:
            c, s = _angle(cos, sin, row, tokens, column, HALF)
            left, right = left * c + right * s, right * c - left * s
        here = row * ((H + 2 * G) * 2 * HALF)
        if NORM is not None:
            a, b, rstd = _halves(packed + here, head, column, is_query_or_key, HALF, epsilon, NORM)
            along = (tl.sum(left * a + right * b, 1) / (2 * HALF))[:, None]
            if NORM == "layer":
                mean = (tl.sum(left + right, 1) / (2 * HALF))[:, None]
                left -= mean
                right -= mean
            left, right = (left - a * along) * rstd[:, None], (right - b * along) * rstd[:, None]
        at = grad_packed + here + head * (2 * HALF) + column
        tl.store(at, left, mask=is_query_or_key)
        tl.store(at + HALF, right, mask=is_query_or_key)
        _copy(grad_values + row * (G * 2 * HALF), grad_packed + here + (H + G) * (2 * HALF), head, column, G, HALF)


def qk_norm_rope_forward(
    packed: Tensor, cos: Tensor | None, sin: Tensor | None, queries: int, keys: int, epsilon: float, norm: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, (H + 2G)d), (B or 1, T, 1, d) -> (B, T, H, d), (B, T, G, d), (B, T, G, d)"""
    packed = packed.contiguous()
    grid, rows, shape = _shape(packed, queries, keys, norm)
    size = 2 * shape["HALF"]
    outs = [packed.new_empty(*packed.shape[:-1], count, size) for count in (queries, keys, keys)]
    if rows:
        _qk_norm_rope[grid](packed, *_tables(cos, sin), *outs, rows, _tokens(cos, rows), epsilon, **shape)
    return outs[0], outs[1], outs[2]


def qk_norm_rope_backward(
    grad_queries: Tensor, grad_keys: Tensor, grad_values: Tensor, packed: Tensor,
    cos: Tensor | None, sin: Tensor | None, epsilon: float, norm: str | None,
) -> Tensor:
    """(B, T, H, d), (B, T, G, d), (B, T, G, d) -> (B, T, (H + 2G)d): the gradient of the packed product."""
    inputs = [part.contiguous() for part in (grad_queries, grad_keys, grad_values, packed)]
    grid, rows, shape = _shape(inputs[3], grad_queries.shape[2], grad_keys.shape[2], norm)
    grad_packed = torch.empty_like(inputs[3])
    if rows:
        tokens = _tokens(cos, rows)
        _qk_norm_rope_backward[grid](*inputs, *_tables(cos, sin), grad_packed, rows, tokens, epsilon, **shape)
    return grad_packed


def _shape(packed: Tensor, queries: int, keys: int, norm: str | None) -> tuple[tuple[int], int, dict[str, Any]]:
    """The grid, the number of tokens, and launch options."""
    rows = packed.numel() // packed.shape[-1]
    size, block = packed.shape[-1] // (queries + 2 * keys), triton.next_power_of_2(queries + keys)
    shape = {"H": queries, "G": keys, "HALF": size // 2, "BLOCK": block, "NORM": norm}
    return (min(rows, MAX_PROGRAMS),), rows, shape | {"num_warps": min(8, max(1, block * size // 1024))}


def _tables(cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if cos is None or sin is None else (cos.contiguous(), sin.contiguous())


def _tokens(cos: Tensor | None, rows: int) -> int:
    """Tokens in the tables: T, if all rows of the batch have the same positions."""
    return rows if cos is None else cos.numel() // cos.shape[-1]

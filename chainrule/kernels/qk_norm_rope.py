"""Queries, keys and values of each head, made of one product: normed, and turned to where their token stands.

    q, k = turned(norm(part of the product))        v = part of the product

Going back they are made again, rather than kept. Shapes: N tokens, H heads of queries, G of keys, d numbers in a head.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 8192      # that share the tokens, at most


@triton.jit
def _halves(product, head, number, there, HALF: tl.constexpr, epsilon, NORM: tl.constexpr):
    """Both halves of each head, normed, and what they were multiplied by."""
    left = tl.load(product + head * (2 * HALF) + number, mask=there, other=0.0).to(tl.float32)
    right = tl.load(product + head * (2 * HALF) + HALF + number, mask=there, other=0.0).to(tl.float32)
    scale = tl.full((left.shape[0],), 1.0, tl.float32)
    if NORM is not None:
        if NORM == "layer":
            mean = (tl.sum(left + right, 1) / (2 * HALF))[:, None]
            left -= mean
            right -= mean
        scale = tl.rsqrt(tl.sum(left * left + right * right, 1) / (2 * HALF) + epsilon)
    return left * scale[:, None], right * scale[:, None], scale


@triton.jit
def _copy(source, to, head, number, G: tl.constexpr, HALF: tl.constexpr):
    at = head * (2 * HALF) + number
    tl.store(to + at, tl.load(source + at, mask=head < G), mask=head < G)
    tl.store(to + at + HALF, tl.load(source + at + HALF, mask=head < G), mask=head < G)


@triton.jit
def _angle(cos, sin, row, tokens, number, HALF: tl.constexpr):
    """Of one token: cos, and sin, of each number of half a head. `tokens`: after so many, tables begin again."""
    at = (row % tokens) * (2 * HALF) + HALF + number
    return tl.load(cos + at).to(tl.float32), tl.load(sin + at).to(tl.float32)


@triton.jit
def _heads(
    product, cos, sin, queries, keys, values, rows, tokens, epsilon,
    H: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    head, number = tl.arange(0, BLOCK)[:, None], tl.arange(0, HALF)[None, :]
    both, asked = head < H + G, head < H
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        here = product + row * ((H + 2 * G) * 2 * HALF)
        left, right, _ = _halves(here, head, number, both, HALF, epsilon, NORM)
        if cos is not None:
            c, s = _angle(cos, sin, row, tokens, number, HALF)
            left, right = left * c - right * s, right * c + left * s
        at = queries + row * (H * 2 * HALF) + head * (2 * HALF) + number
        tl.store(at, left, mask=asked)
        tl.store(at + HALF, right, mask=asked)
        at = keys + row * (G * 2 * HALF) + (head - H) * (2 * HALF) + number
        tl.store(at, left, mask=both & (head >= H))
        tl.store(at + HALF, right, mask=both & (head >= H))
        _copy(here + (H + G) * (2 * HALF), values + row * (G * 2 * HALF), head, number, G, HALF)


@triton.jit
def _heads_back(
    of_queries, of_keys, of_values, product, cos, sin, below, rows, tokens, epsilon,
    H: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    head, number = tl.arange(0, BLOCK)[:, None], tl.arange(0, HALF)[None, :]
    both, asked = head < H + G, head < H
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        asking = of_queries + row * (H * 2 * HALF) + head * (2 * HALF) + number
        known = of_keys + row * (G * 2 * HALF) + (head - H) * (2 * HALF) + number
        left = tl.load(asking, mask=asked, other=0.0).to(tl.float32)
        right = tl.load(asking + HALF, mask=asked, other=0.0).to(tl.float32)
        left += tl.load(known, mask=both & (head >= H), other=0.0).to(tl.float32)
        right += tl.load(known + HALF, mask=both & (head >= H), other=0.0).to(tl.float32)
        if cos is not None:
            c, s = _angle(cos, sin, row, tokens, number, HALF)
            left, right = left * c + right * s, right * c - left * s
        here = row * ((H + 2 * G) * 2 * HALF)
        if NORM is not None:
            a, b, scale = _halves(product + here, head, number, both, HALF, epsilon, NORM)
            along = (tl.sum(left * a + right * b, 1) / (2 * HALF))[:, None]
            if NORM == "layer":
                mean = (tl.sum(left + right, 1) / (2 * HALF))[:, None]
                left -= mean
                right -= mean
            left, right = (left - a * along) * scale[:, None], (right - b * along) * scale[:, None]
        at = below + here + head * (2 * HALF) + number
        tl.store(at, left, mask=both)
        tl.store(at + HALF, right, mask=both)
        _copy(of_values + row * (G * 2 * HALF), below + here + (H + G) * (2 * HALF), head, number, G, HALF)


def heads(
    product: Tensor, cos: Tensor | None, sin: Tensor | None, queries: int, keys: int, epsilon: float, norm: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, T, (H + 2G)d), (B or 1, T, 1, d) -> (B, T, H, d), (B, T, G, d), (B, T, G, d)"""
    product = product.contiguous()
    grid, rows, how = _shape(product, queries, keys, norm)
    size = 2 * how["HALF"]
    outs = [product.new_empty(*product.shape[:-1], count, size) for count in (queries, keys, keys)]
    if rows:
        _heads[grid](product, *_tables(cos, sin), *outs, rows, _tokens(cos, rows), epsilon, **how)
    return outs[0], outs[1], outs[2]


def heads_back(
    of_queries: Tensor, of_keys: Tensor, of_values: Tensor, product: Tensor, cos: Tensor | None, sin: Tensor | None,
    epsilon: float, norm: str | None,
) -> Tensor:
    """And what the product learns."""
    given = [part.contiguous() for part in (of_queries, of_keys, of_values, product)]
    grid, rows, how = _shape(given[3], of_queries.shape[2], of_keys.shape[2], norm)
    below = torch.empty_like(given[3])
    if rows:
        _heads_back[grid](*given, *_tables(cos, sin), below, rows, _tokens(cos, rows), epsilon, **how)
    return below


def _shape(product: Tensor, queries: int, keys: int, norm: str | None) -> tuple[tuple[int], int, dict[str, Any]]:
    """Programs, tokens, and how a program holds the heads of a token."""
    rows = product.numel() // product.shape[-1]
    size, block = product.shape[-1] // (queries + 2 * keys), triton.next_power_of_2(queries + keys)
    how = {"H": queries, "G": keys, "HALF": size // 2, "BLOCK": block, "NORM": norm}
    return (min(rows, PROGRAMS),), rows, how | {"num_warps": min(8, max(1, block * size // 1024))}


def _tables(cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if cos is None or sin is None else (cos.contiguous(), sin.contiguous())


def _tokens(cos: Tensor | None, rows: int) -> int:
    """(1, T, 1, d): every row of the batch has the same places."""
    return rows if cos is None else cos.numel() // cos.shape[-1]

"""Norms inside kernels, and two of their own: what a part found is added to the stream and the sum normed; and going
back, what is learned of all of them.

    rms    x / √(mean x² + ε) · gains
    layer  (x - mean x) / √(variance x + ε) · gains + shift

Shapes: B rows, D width, P programs.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024          # numbers of the stream that a warp holds going back, in one row or in several
PROGRAMS = 4096      # that share the rows, at most
TURNS = 8            # rows that each has at least, one after another, so that there are not too many sums to be summed


class Norm(NamedTuple):
    kind: str | None         # rms or layer; None: it is not there
    epsilon: float
    gains: Tensor | None     # (D,)
    shift: Tensor | None     # (D,)


NONE = Norm(None, 0.0, None, None)


@triton.jit
def normed(x, gains, shift, column, here, size, epsilon, KIND: tl.constexpr):
    """(…, N) float32, of which `size` are `here` and the rest 0; gains and shift, of which each has its column."""
    return _normed(x, gains, shift, column, here, size, epsilon, KIND)[0]


@triton.jit
def _normed(x, gains, shift, column, here, size, epsilon, KIND: tl.constexpr):
    """The same; what rows were multiplied by; and what was taken from them before, if anything was."""
    if gains is not None:
        gain = tl.load(gains + column, mask=here, other=0.0)    # they come while threads agree on the rest
    if shift is not None:
        move = tl.load(shift + column, mask=here, other=0.0)
    mean = tl.zeros((x.shape[0],), tl.float32)
    if KIND == "layer":
        mean = tl.sum(x, 1) / size
        x = tl.where(here, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1) / size + epsilon)
    x = x * scale[:, None]
    if gains is not None:
        x *= gain.to(tl.float32)
    if shift is not None:
        x += move.to(tl.float32)
    return x, scale, mean


@triton.jit
def _add_norm(
    x, found, gains, shift, total, out, scales, means, rows, epsilon,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    here = (column < WIDTH) & (row < rows)[:, None]
    at = row.to(tl.int64)[:, None] * WIDTH + column
    value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
    if found is not None:
        value += tl.load(found + at, mask=here, other=0.0).to(tl.float32)
        kept = value.to(total.dtype.element_ty)
        tl.store(total + at, kept, mask=here)
        value = kept.to(tl.float32)
    value, scale, mean = _normed(value, gains, shift, column, here, WIDTH, epsilon, KIND)
    tl.store(out + at, value, mask=here)
    if scales is not None:
        tl.store(scales + row, scale, mask=row < rows)
        tl.store(means + row, mean, mask=row < rows)


def add_norm(x: Tensor, found: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
    """(B, D), (B, D) or None -> (B, D) their sum, and (B, D) the sum normed."""
    rows, width = x.shape
    total, out = x if found is None else torch.empty_like(x), torch.empty_like(x)
    _add_norm[(rows,)](
        x, found, norm.gains, norm.shift, total, out, None, None, rows, norm.epsilon,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=1, KIND=norm.kind, num_warps=4,
    )  # fmt: skip
    return total, out


def add_norm_to_learn(
    x: Tensor, found: Tensor, gains: Tensor | None, shift: Tensor | None, epsilon: float, centred: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of (…, D), normed into this dtype; and, for the way back, (B,) what rows were multiplied
    by, and what was taken from them before."""
    x, found = x.contiguous(), found.contiguous()
    rows, shape = _shape(x, centred)
    scale, mean = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
    total, out = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    if rows:
        _add_norm[(triton.cdiv(rows, shape["ROWS"]),)](
            x, found, gains, shift, total, out, scale, mean, rows, epsilon, **shape
        )
    return total, out, scale, mean


@triton.jit
def _add_norm_back(
    to_total, to_out, total, scales, means, gains, to_x, to_found, sums, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)[None, :]
    real = column < WIDTH
    if gains is not None:
        gain = tl.load(gains + column, mask=real, other=0.0).to(tl.float32)
    of_gains, of_shift = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        here = real & (row < rows)[:, None]
        at = row.to(tl.int64)[:, None] * WIDTH + column
        scale = tl.load(scales + row, mask=row < rows, other=0.0)[:, None]
        x = tl.load(total + at, mask=here, other=0.0).to(tl.float32)
        slope = tl.load(to_out + at, mask=here, other=0.0).to(tl.float32)
        if KIND == "layer":
            x -= tl.load(means + row, mask=row < rows, other=0.0)[:, None]
        x = tl.where(here, x * scale, 0.0)                                         # as it was before gains and shift
        of_gains += tl.sum(slope * x, 0)
        of_shift += tl.sum(slope, 0)
        if gains is not None:
            slope *= gain
        learned = slope - x * (tl.sum(slope * x, 1) / WIDTH)[:, None]
        if KIND == "layer":
            learned -= (tl.sum(slope, 1) / WIDTH)[:, None]
        learned = tl.where(here, learned * scale, 0.0)
        if to_total is not None:
            learned += tl.load(to_total + at, mask=here, other=0.0).to(tl.float32)
        tl.store(to_x + at, learned, mask=here)
        if to_found is not None:
            tl.store(to_found + at, learned, mask=here)
    if sums is not None:
        column = tl.arange(0, BLOCK)
        sums += tl.program_id(0) * (2 * WIDTH) + column
        tl.store(sums, of_gains, mask=column < WIDTH)
        tl.store(sums + WIDTH, of_shift, mask=column < WIDTH)


def add_norm_back(
    to_total: Tensor | None, to_normed: Tensor, total: Tensor, scale: Tensor, mean: Tensor, gains: Tensor | None,
    centred: bool, dtype: torch.dtype, shared: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """What is learned of a stream and, in this dtype, of what was found (nothing, if it is the stream's): (…, D) both;
    and (2, D) of gains and shift, if such are `shared` by rows."""
    to_total, to_normed = to_total if to_total is None else to_total.contiguous(), to_normed.contiguous()
    rows, shape = _shape(total, centred)
    programs = min(PROGRAMS, triton.cdiv(rows, shape["ROWS"] * TURNS))
    of_x = torch.empty_like(total)
    of_found = torch.empty_like(total, dtype=dtype) if dtype != total.dtype else None
    sums = total.new_empty(programs, 2, total.shape[-1], dtype=torch.float32) if shared else None
    if rows:
        _add_norm_back[(programs,)](to_total, to_normed, total, scale, mean, gains, of_x, of_found, sums, rows, **shape)
    columns = total.new_empty(0, dtype=torch.float32) if sums is None else sums.sum(0)
    return of_x, total.new_empty(0) if of_found is None else of_found, columns


def _shape(x: Tensor, centred: bool) -> tuple[int, dict[str, Any]]:
    """Rows, and how programs hold them: narrow ones several at a time, wide ones by several warps."""
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    rows, warps = max(1, TILE // block), min(16, max(1, block // TILE))
    kind = "layer" if centred else "rms"
    return x.numel() // width, {"WIDTH": width, "BLOCK": block, "ROWS": rows, "KIND": kind, "num_warps": warps}

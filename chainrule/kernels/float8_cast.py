"""Casts to float8 in one kernel: scale, saturation, and the sums of columns; and the transposed copy in another.

    scale = the power of 2 at or below limit / amax;   out = saturated(x · scale);   inverse = 1 / scale

x may be an activation of a product and a bias, or the gradient through one, which is then never written in bfloat16
(`KIND`, as in bias_act.py). A GPU multiplies float8 matrices only where both are contiguous along the summed axis, so
the weight gradient, which sums over rows, needs transposed copies.

Shapes: N rows, W columns, P rows with padding to a multiple of 16.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from chainrule.kernels.bias_act import activate, biased, derivative

BLOCK = 1024         # columns of a program
MAX_PROGRAMS = 4096  # that share the rows
MIN_ROWS = 4         # of a program: each program leaves one sum to be added
TILE = 128           # rows and columns that are transposed together
MULTIPLE = 16        # of the rows of a transposed copy


@triton.jit
def _value(x, product, bias, row, column, valid, COLUMNS: tl.constexpr, KIND: tl.constexpr, BACKWARD: tl.constexpr):
    """x, the activation, or the gradient through it, in float32; a backward swiglu has both halves as columns."""
    if KIND is None:
        value = tl.load(x + row * COLUMNS + column, mask=valid, other=0.0).to(tl.float32)
    elif KIND == "swiglu":
        half: tl.constexpr = COLUMNS // 2 if BACKWARD else COLUMNS
        is_value = column >= half
        place = tl.where(is_value, column - half, column)
        gate = biased(product, bias, row * (2 * half) + place, place, valid)
        linear = biased(product, bias, row * (2 * half) + half + place, half + place, valid)
        if BACKWARD:
            grad = tl.load(x + row * half + place, mask=valid, other=0.0).to(tl.float32)
            value = grad * tl.where(is_value, activate(gate, "silu"), linear * derivative(gate, "silu"))
        else:
            value = activate(gate, "silu") * linear
    else:
        before = biased(product, bias, row * COLUMNS + column, column, valid)
        if BACKWARD:
            value = tl.load(x + row * COLUMNS + column, mask=valid, other=0.0).to(tl.float32) * derivative(before, KIND)
        else:
            value = activate(before, KIND)
    return value


@triton.jit
def _cast(
    x, product, bias, amax, out, inverse, sums, rows, smallest, limit, highest,
    COLUMNS: tl.constexpr, KIND: tl.constexpr, BACKWARD: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < COLUMNS
    ratio = limit / tl.maximum(tl.load(amax), smallest)
    scale = (ratio.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)    # its exponent
    if (first == 0) & (tl.program_id(1) == 0):
        tl.store(inverse, 1.0 / scale)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(first.to(tl.int64), rows, tl.num_programs(0)):
        value = _value(x, product, bias, row, column, valid, COLUMNS, KIND, BACKWARD)
        total += value
        value *= scale
        value = tl.where(value > highest, highest, tl.where(value < -highest, -highest, value))    # NaN stays NaN
        tl.store(out + row * COLUMNS + column, value.to(DTYPE), mask=valid)
    if sums is not None:
        tl.store(sums + first * COLUMNS + column, total, mask=valid)


@triton.jit
def _transpose(x, out, rows, columns, padded, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)[None, :]
    value = tl.load(x + row * columns + column, mask=(row < rows) & (column < columns), other=0)
    tl.store(out + column * padded + row, value, mask=(column < columns) & (row < padded))


def cast(
    x: Tensor | None, product: Tensor | None, bias: Tensor | None, activation: str | None, amax: Tensor,
    smallest: float, limit: float, dtype: torch.dtype, transposed: bool, sums: bool,
    into: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(N, W) in float8, (W, P) transposed, the inverse scale, and (W,) sums of columns before the cast.

    `activation` of a product and a bias; with x: the gradient x through it. `into`: where the first three are written.
    """
    given: Any = product if x is None else x
    wide: Any = given if product is None else product
    rows, columns = len(given), wide.shape[1] // (2 if activation == "swiglu" and x is None else 1)
    if into is None:
        out, inverse = given.new_empty(rows, columns, dtype=dtype), given.new_empty((), dtype=torch.float32)
    else:
        out, _, inverse = into
    grid = min(MAX_PROGRAMS, triton.cdiv(rows, MIN_ROWS)), triton.cdiv(columns, BLOCK)
    column_sums = given.new_empty(grid[0], columns, dtype=torch.float32) if sums else None
    _cast[grid](
        x, product, bias, amax, out, inverse, column_sums, rows, smallest, limit, torch.finfo(dtype).max,
        COLUMNS=columns, KIND=activation, BACKWARD=x is not None, BLOCK=BLOCK,
        DTYPE=tl.float8e5 if dtype == torch.float8_e5m2 else tl.float8e4nv,
    )  # fmt: skip
    across = transpose(out, None if into is None else into[1]) if transposed else out.new_empty(0, columns)
    return out, across, inverse, given.new_empty(0, dtype=torch.float32) if column_sums is None else column_sums.sum(0)


def transpose(x: Tensor, into: Tensor | None = None) -> Tensor:
    """(N, W) of float8 -> (W, P)"""
    rows, columns = x.shape
    padded = -(-rows // MULTIPLE) * MULTIPLE
    out = x.new_empty(columns, padded) if into is None else into
    _transpose[(triton.cdiv(padded, TILE), triton.cdiv(columns, TILE))](
        x.view(torch.uint8), out.view(torch.uint8), rows, columns, padded, TILE=TILE, num_warps=8
    )
    return out

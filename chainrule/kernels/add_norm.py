"""RMSNorm and LayerNorm in kernels: adding to the residual stream and the norm of the sum, forward and backward.

    total = x + delta;  out = norm(total)
    rms    x / √(mean x² + ε) · weight
    layer  (x - mean x) / √(variance x + ε) · weight + bias

`rstd` is the factor 1/√(… + ε) of a row, kept with its mean for the backward pass.

Shapes: B rows, D width, P programs.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024          # numbers that a warp holds, in one row or in several
MAX_PROGRAMS = 4096  # that share the rows in the backward pass
MIN_ROWS = 8         # of a program in the backward pass, one after another: each program leaves one sum to be added


class Norm(NamedTuple):
    kind: str | None         # rms or layer; None: no norm
    epsilon: float
    weight: Tensor | None    # (D,)
    bias: Tensor | None      # (D,)


NO_NORM = Norm(None, 0.0, None, None)


@triton.jit
def norm_rows(x, weight, bias, column, valid, size, epsilon, KIND: tl.constexpr):
    """(…, N) float32, of which `size` columns are `valid` and the rest 0 -> the same normed."""
    return _norm_rows(x, weight, bias, column, valid, size, epsilon, KIND)[0]


@triton.jit
def _norm_rows(x, weight, bias, column, valid, size, epsilon, KIND: tl.constexpr):
    """The same, and the rstd and mean of each row; the mean is 0 for rms."""
    if weight is not None:
        column_weight = tl.load(weight + column, mask=valid, other=0.0)    # early: the sums below wait for all threads
    if bias is not None:
        column_bias = tl.load(bias + column, mask=valid, other=0.0)
    mean = tl.zeros((x.shape[0],), tl.float32)
    if KIND == "layer":
        mean = tl.sum(x, 1) / size
        x = tl.where(valid, x - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(x * x, 1) / size + epsilon)
    x = x * rstd[:, None]
    if weight is not None:
        x *= column_weight.to(tl.float32)
    if bias is not None:
        x += column_bias.to(tl.float32)
    return x, rstd, mean


@triton.jit
def _add_norm(
    x, delta, weight, bias, total, out, rstds, means, rows, epsilon,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    valid = (column < WIDTH) & (row < rows)[:, None]
    offset = row.to(tl.int64)[:, None] * WIDTH + column
    value = tl.load(x + offset, mask=valid, other=0.0).to(tl.float32)
    if delta is not None:
        value += tl.load(delta + offset, mask=valid, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + offset, rounded, mask=valid)
        value = rounded.to(tl.float32)
    value, rstd, mean = _norm_rows(value, weight, bias, column, valid, WIDTH, epsilon, KIND)
    tl.store(out + offset, value, mask=valid)
    if rstds is not None:
        tl.store(rstds + row, rstd, mask=row < rows)
        tl.store(means + row, mean, mask=row < rows)


def fused_add_norm(x: Tensor, delta: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
    """For decoding: (B, D), (B, D) or None -> (B, D) their sum, and (B, D) its norm."""
    rows, width = x.shape
    total, out = x if delta is None else torch.empty_like(x), torch.empty_like(x)
    _add_norm[(rows,)](
        x, delta, norm.weight, norm.bias, total, out, None, None, rows, norm.epsilon,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=1, KIND=norm.kind, num_warps=4,
    )  # fmt: skip
    return total, out


def add_norm_forward(
    x: Tensor, delta: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, subtract_mean: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For training: (…, D) the sum, and its norm in this dtype; for the backward pass, rstd and mean (B,)."""
    x, delta = x.contiguous(), delta.contiguous()
    rows, shape = _shape(x, subtract_mean)
    rstd, mean = (x.new_empty(rows, dtype=torch.float32) for _ in range(2))
    total, out = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    if rows:
        _add_norm[(triton.cdiv(rows, shape["ROWS"]),)](
            x, delta, weight, bias, total, out, rstd, mean, rows, epsilon, **shape
        )
    return total, out, rstd, mean


@triton.jit
def _add_norm_backward(
    grad_total, grad_out, total, rstds, means, weight, grad_x, grad_delta, sums, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)[None, :]
    in_width = column < WIDTH
    if weight is not None:
        column_weight = tl.load(weight + column, mask=in_width, other=0.0).to(tl.float32)
    grad_weight, grad_bias = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        valid = in_width & (row < rows)[:, None]
        offset = row.to(tl.int64)[:, None] * WIDTH + column
        rstd = tl.load(rstds + row, mask=row < rows, other=0.0)[:, None]
        x = tl.load(total + offset, mask=valid, other=0.0).to(tl.float32)
        grad = tl.load(grad_out + offset, mask=valid, other=0.0).to(tl.float32)
        if KIND == "layer":
            x -= tl.load(means + row, mask=row < rows, other=0.0)[:, None]
        x = tl.where(valid, x * rstd, 0.0)                                          # before weight and bias
        grad_weight += tl.sum(grad * x, 0)
        grad_bias += tl.sum(grad, 0)
        if weight is not None:
            grad *= column_weight
        grad_in = grad - x * (tl.sum(grad * x, 1) / WIDTH)[:, None]
        if KIND == "layer":
            grad_in -= (tl.sum(grad, 1) / WIDTH)[:, None]
        grad_in = tl.where(valid, grad_in * rstd, 0.0)
        if grad_total is not None:
            grad_in += tl.load(grad_total + offset, mask=valid, other=0.0).to(tl.float32)
        tl.store(grad_x + offset, grad_in, mask=valid)
        if grad_delta is not None:
            tl.store(grad_delta + offset, grad_in, mask=valid)
    if sums is not None:
        column = tl.arange(0, BLOCK)
        sums += tl.program_id(0) * (2 * WIDTH) + column
        tl.store(sums, grad_weight, mask=column < WIDTH)
        tl.store(sums + WIDTH, grad_bias, mask=column < WIDTH)


def add_norm_backward(
    grad_total: Tensor | None, grad_normed: Tensor, total: Tensor, rstd: Tensor, mean: Tensor, weight: Tensor | None,
    subtract_mean: bool, dtype: torch.dtype, has_parameters: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: (…, D) for x, and for delta in this dtype (empty where the dtype is that of x); (2, D) for weight and
    bias, empty without parameters."""
    grad_total, grad_normed = grad_total if grad_total is None else grad_total.contiguous(), grad_normed.contiguous()
    rows, shape = _shape(total, subtract_mean)
    programs = min(MAX_PROGRAMS, triton.cdiv(rows, shape["ROWS"] * MIN_ROWS))
    grad_x = torch.empty_like(total)
    grad_delta = torch.empty_like(total, dtype=dtype) if dtype != total.dtype else None
    sums = total.new_empty(programs, 2, total.shape[-1], dtype=torch.float32) if has_parameters else None
    if rows:
        _add_norm_backward[(programs,)](
            grad_total, grad_normed, total, rstd, mean, weight, grad_x, grad_delta, sums, rows, **shape
        )
    grad_parameters = total.new_empty(0, dtype=torch.float32) if sums is None else sums.sum(0)
    return grad_x, total.new_empty(0) if grad_delta is None else grad_delta, grad_parameters


def _shape(x: Tensor, subtract_mean: bool) -> tuple[int, dict[str, Any]]:
    """The number of rows, and launch options: narrow rows several at a time, wide ones by several warps."""
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    rows, warps = max(1, TILE // block), min(16, max(1, block // TILE))
    kind = "layer" if subtract_mean else "rms"
    return x.numel() // width, {"WIDTH": width, "BLOCK": block, "ROWS": rows, "KIND": kind, "num_warps": warps}

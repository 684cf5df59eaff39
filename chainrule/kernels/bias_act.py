"""Activations inside kernels, and two kernels of their own: a bias and an activation going up, and both going back.

    out = f(product + bias)        swiglu: silu(gates + bias) · (values + bias), gates left of values

Going back, what a bias learns is summed where its numbers are made, so that they need not be read again.

Shapes: N rows, H outputs, W inputs: H, or 2H under swiglu; P programs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024         # columns of a program
PROGRAMS = 2048      # that share the rows, at most
ROWS = 8             # that a program has at least, so that there are not too many sums to be summed


@triton.jit
def activated(x, KIND: tl.constexpr):
    if KIND == "relu":
        x = tl.maximum(x, 0.0)
    elif KIND == "relu2":
        x = tl.maximum(x, 0.0)
        x = x * x
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu-tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))    # for (1 + tanh z) / 2 = σ(2z)
    elif KIND == "silu":
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def slope(x, KIND: tl.constexpr):
    """How an activation changes with its x."""
    if KIND == "relu":
        x = tl.where(x > 0, 1.0, 0.0)
    elif KIND == "relu2":
        x = 2 * tl.maximum(x, 0.0)
    elif KIND == "gelu":
        x = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    elif KIND == "gelu-tanh":
        open = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        x = open + x * open * (1 - open) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    elif KIND == "silu":
        open = tl.sigmoid(x)
        x = open + x * open * (1 - open)
    return x


@triton.jit
def _biased(product, bias, at, column, here):
    x = tl.load(product + at, mask=here, other=0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + column, mask=here, other=0.0).to(tl.float32)
    return x


@triton.jit
def _bend(
    product, bias, out, rows, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = column < OUTPUTS
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        at = row * INPUTS + column
        x = _biased(product, bias, at, column, here)
        if KIND == "swiglu":
            made = activated(x, "silu") * _biased(product, bias, at + OUTPUTS, column + OUTPUTS, here)
        else:
            made = activated(x, KIND)
        tl.store(out + row * OUTPUTS + column, made, mask=here)


@triton.jit
def _bend_back(
    above, product, bias, below, sums, rows,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = column < OUTPUTS
    sum_of_first, sum_of_second = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        at = row * INPUTS + column
        x = _biased(product, bias, at, column, here)
        to_out = tl.load(above + row * OUTPUTS + column, mask=here, other=0.0).to(tl.float32)
        if KIND == "swiglu":
            value = _biased(product, bias, at + OUTPUTS, column + OUTPUTS, here)
            to_value = to_out * activated(x, "silu")
            to_x = to_out * value * slope(x, "silu")
            tl.store(below + at + OUTPUTS, to_value, mask=here)
            sum_of_second += to_value
        else:
            to_x = to_out * slope(x, KIND)
        tl.store(below + at, to_x, mask=here)
        sum_of_first += to_x
    if sums is not None:
        sums += tl.program_id(0) * INPUTS + column
        tl.store(sums, sum_of_first, mask=here)
        if KIND == "swiglu":
            tl.store(sums + OUTPUTS, sum_of_second, mask=here)


def bend(product: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """(…, W), (W,) -> (…, H)"""
    product, inputs = product.contiguous(), product.shape[-1]
    outputs = inputs // (1 + (kind == "swiglu"))
    out = product.new_empty(*product.shape[:-1], outputs)
    if rows := product.numel() // inputs:
        _bend[_grid(rows, outputs)](product, bias, out, rows, OUTPUTS=outputs, INPUTS=inputs, KIND=kind, BLOCK=BLOCK)
    return out


def bend_back(above: Tensor, product: Tensor, bias: Tensor | None, kind: str) -> tuple[Tensor, Tensor]:
    """(…, H), (…, W), (W,) -> (…, W) what the product learns, and (W,) what the bias does; nothing without one."""
    above, product = above.contiguous(), product.contiguous()
    inputs, outputs, below = product.shape[-1], above.shape[-1], torch.empty_like(product)
    rows = product.numel() // inputs
    grid = _grid(rows, outputs)
    sums = None if bias is None else above.new_empty(grid[0], inputs, dtype=torch.float32)
    if rows:
        _bend_back[grid](
            above, product, bias, below, sums, rows, OUTPUTS=outputs, INPUTS=inputs, KIND=kind, BLOCK=BLOCK
        )
    return below, above.new_empty(0, dtype=torch.float32) if sums is None else sums.sum(0)


def _grid(rows: int, outputs: int) -> tuple[int, int]:
    return min(PROGRAMS, triton.cdiv(rows, ROWS)), triton.cdiv(outputs, BLOCK)

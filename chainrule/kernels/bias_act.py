"""Bias and activation in one kernel, forward and backward, for the feed-forward layer.

    out = f(product + bias)        swiglu: silu(gates + bias) · (values + bias), gates left of values

The backward kernel sums the gradient of the bias while it computes the rest, so that it is not read again.

Shapes: N rows, H outputs, W inputs: H, or 2H for swiglu.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024         # columns of a program
MAX_PROGRAMS = 2048  # that share the rows
MIN_ROWS = 8         # of a program: each program leaves one sum to be added


@triton.jit
def activate(x, KIND: tl.constexpr):
    if KIND == "relu":
        x = tl.maximum(x, 0.0)
    elif KIND == "relu2":
        x = tl.maximum(x, 0.0)
        x = x * x
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == "gelu-tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))    # (1 + tanh z) / 2 = σ(2z)
    elif KIND == "silu":
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def derivative(x, KIND: tl.constexpr):
    """Of the activation at x."""
    if KIND == "relu":
        x = tl.where(x > 0, 1.0, 0.0)
    elif KIND == "relu2":
        x = 2 * tl.maximum(x, 0.0)
    elif KIND == "gelu":
        x = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    elif KIND == "gelu-tanh":
        gate = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        x = gate + x * gate * (1 - gate) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    elif KIND == "silu":
        gate = tl.sigmoid(x)
        x = gate + x * gate * (1 - gate)
    return x


@triton.jit
def biased(product, bias, offset, column, valid):
    x = tl.load(product + offset, mask=valid, other=0.0).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
    return x


@triton.jit
def _bias_act(
    product, bias, out, rows, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < OUTPUTS
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        offset = row * INPUTS + column
        x = biased(product, bias, offset, column, valid)
        if KIND == "swiglu":
            result = activate(x, "silu") * biased(product, bias, offset + OUTPUTS, column + OUTPUTS, valid)
        else:
            result = activate(x, KIND)
        tl.store(out + row * OUTPUTS + column, result, mask=valid)


@triton.jit
def _bias_act_backward(
    grad_out, product, bias, grad_product, sums, rows,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < OUTPUTS
    sum_first, sum_second = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        offset = row * INPUTS + column
        x = biased(product, bias, offset, column, valid)
        grad = tl.load(grad_out + row * OUTPUTS + column, mask=valid, other=0.0).to(tl.float32)
        if KIND == "swiglu":
            value = biased(product, bias, offset + OUTPUTS, column + OUTPUTS, valid)
            grad_value = grad * activate(x, "silu")
            grad_x = grad * value * derivative(x, "silu")
            tl.store(grad_product + offset + OUTPUTS, grad_value, mask=valid)
            sum_second += grad_value
        else:
            grad_x = grad * derivative(x, KIND)
        tl.store(grad_product + offset, grad_x, mask=valid)
        sum_first += grad_x
    if sums is not None:
        sums += tl.program_id(0) * INPUTS + column
        tl.store(sums, sum_first, mask=valid)
        if KIND == "swiglu":
            tl.store(sums + OUTPUTS, sum_second, mask=valid)


def bias_act_forward(product: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    """(…, W), (W,) -> (…, H)"""
    product, inputs = product.contiguous(), product.shape[-1]
    outputs = inputs // (1 + (kind == "swiglu"))
    out = product.new_empty(*product.shape[:-1], outputs)
    if rows := product.numel() // inputs:
        _bias_act[_grid(rows, outputs)](
            product, bias, out, rows, OUTPUTS=outputs, INPUTS=inputs, KIND=kind, BLOCK=BLOCK
        )
    return out


def bias_act_backward(grad_out: Tensor, product: Tensor, bias: Tensor | None, kind: str) -> tuple[Tensor, Tensor]:
    """(…, H), (…, W), (W,) -> gradients (…, W) of the product and (W,) of the bias; empty without a bias."""
    grad_out, product = grad_out.contiguous(), product.contiguous()
    inputs, outputs, grad_product = product.shape[-1], grad_out.shape[-1], torch.empty_like(product)
    rows = product.numel() // inputs
    grid = _grid(rows, outputs)
    sums = None if bias is None else grad_out.new_empty(grid[0], inputs, dtype=torch.float32)
    if rows:
        _bias_act_backward[grid](
            grad_out, product, bias, grad_product, sums, rows, OUTPUTS=outputs, INPUTS=inputs, KIND=kind, BLOCK=BLOCK
        )
    return grad_product, grad_out.new_empty(0, dtype=torch.float32) if sums is None else sums.sum(0)


def _grid(rows: int, outputs: int) -> tuple[int, int]:
    return min(MAX_PROGRAMS, triton.cdiv(rows, MIN_ROWS)), triton.cdiv(outputs, BLOCK)

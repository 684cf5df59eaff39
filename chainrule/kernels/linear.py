"""A linear layer for a small batch, with the norm before it and the activation and residual after it, in one kernel.

    out = residual + activation(W · norm(x) + b)

Each program has a few rows of W and reads them once, before it reads x: for so few rows the time is that of reading W.
Instead of x there may be the splits of attention, which are combined first (decode_attention.py).

Shapes: B rows, K inputs, N outputs, S splits, H heads, d numbers in a head.
"""

import triton
import triton.language as tl
from torch import Tensor

from chainrule.kernels import launch_options
from chainrule.kernels.add_norm import NO_NORM, Norm, norm_rows
from chainrule.kernels.bias_act import activate
from chainrule.kernels.decode_attention import AttentionParts

TILE = 8192          # numbers of W that a program holds
PROGRAMS = 132       # processors of a large GPU: at least so many programs


@triton.jit
def combine_splits(
    mixed, highest_score, total_weight, row,
    SPLITS: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(1, WIDTH): the output of attention for a row, from its splits, each weighted by the softmax mass of its keys."""
    head, column_in_head = tl.arange(0, WIDTH // SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    valid = head < HEADS
    best = tl.full((WIDTH // SIZE, 1), float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        part = (row * SPLITS + split) * HEADS + head
        best = tl.maximum(best, tl.load(highest_score + part, mask=valid, other=0.0))
    mixed_sum = tl.zeros((WIDTH // SIZE, SIZE), tl.float32)
    weight = tl.zeros((WIDTH // SIZE, 1), tl.float32)
    for split in tl.static_range(SPLITS):
        part = (row * SPLITS + split) * HEADS + head
        share = tl.exp2(tl.load(highest_score + part, mask=valid, other=0.0) - best)
        weight += share * tl.load(total_weight + part, mask=valid, other=1.0)
        there = valid & (column_in_head < SIZE)
        mixed_sum += share * tl.load(mixed + part * SIZE + column_in_head, mask=there, other=0.0)
    return tl.reshape(mixed_sum / weight, (1, WIDTH))


@triton.jit
def _linear(
    x, highest_score, total_weight, weight, bias, norm_weight, norm_bias, residual, out, rows, outputs, epsilon,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, SPLITS: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH)[None, :]
    row_valid, column_valid = output < outputs, column < INPUTS
    valid = row_valid[:, None] & column_valid
    matrix = tl.load(weight + output[:, None] * INPUTS + column, mask=valid, other=0.0)
    if bias is not None:
        bias_part = tl.load(bias + output, mask=row_valid, other=0.0)
    if ACTIVATION == "swiglu":      # the rows of the gates come first, then those of the values
        value_matrix = tl.load(weight + (outputs + output[:, None]) * INPUTS + column, mask=valid, other=0.0)
        if bias is not None:
            value_bias = tl.load(bias + outputs + output, mask=row_valid, other=0.0)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    for row in range(rows):
        if SPLITS > 1:
            inputs = combine_splits(x, highest_score, total_weight, row, SPLITS, INPUTS // SIZE, SIZE, WIDTH)
        else:
            inputs = tl.load(x + row * INPUTS + column, mask=column_valid, other=0.0).to(tl.float32)
        if residual is not None:
            residual_part = tl.load(residual + row * outputs + output, mask=row_valid, other=0.0)
        if NORM is not None:
            inputs = norm_rows(inputs, norm_weight, norm_bias, column, column_valid, INPUTS, epsilon, NORM)
        result = tl.sum(matrix.to(tl.float32) * inputs, 1)
        if bias is not None:
            result += bias_part.to(tl.float32)
        if ACTIVATION == "swiglu":
            value = tl.sum(value_matrix.to(tl.float32) * inputs, 1)
            if bias is not None:
                value += value_bias.to(tl.float32)
            result = activate(result, "silu") * value
        else:
            result = activate(result, ACTIVATION)
        if residual is not None:
            result += residual_part.to(tl.float32)
        tl.store(out + row * outputs + output, result, mask=row_valid)


def fused_linear(
    x: Tensor | AttentionParts,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Norm = NO_NORM,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """(B, K) -> (B, N). For swiglu W has 2N rows: gates, then values."""
    parts = x if isinstance(x, AttentionParts) else AttentionParts(x)
    rows, inputs, gated = len(parts.mixed), weight.shape[1], activation == "swiglu"
    outputs, width = len(weight) // (1 + gated), triton.next_power_of_2(inputs)
    block = min(max(1, TILE // (1 + gated) // width), _power_of_2_below(outputs // PROGRAMS))
    out = weight.new_empty(rows, outputs)
    _linear[(triton.cdiv(outputs, block),)](
        *parts, weight, bias, norm.weight, norm.bias, residual, out, rows, outputs, norm.epsilon,
        INPUTS=inputs, WIDTH=width, BLOCK=block, NORM=norm.kind, ACTIVATION=activation,
        SPLITS=parts.splits, SIZE=parts.mixed.shape[-1], num_warps=4 if width <= TILE else 8,
        **launch_options(),
    )  # fmt: skip
    return out


def _power_of_2_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)

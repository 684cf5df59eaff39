"""A linear map of few rows, with all that goes before it and comes after, in one kernel.

    out = added + activation(W · norm(x) + b)

Each program has a few rows of W and reads them once, in one go, before it looks at x: what a map of so few rows costs
is the reading of W. In place of x there may be parts of a mixture, which attention left to be weighed (attention.py).

Shapes: B rows, K inputs, N outputs, S splits, H heads, d numbers in a head.
"""


import triton
import triton.language as tl
from torch import Tensor

from chainrule.kernels import launch_options
from chainrule.kernels.add_norm import NONE, Norm, normed
from chainrule.kernels.bias_act import activated
from chainrule.kernels.decode_attention import Parts

TILE = 8192          # numbers of W that a program holds
PROGRAMS = 132       # processors of a large GPU, none of which should be idle


@triton.jit
def weighed(
    mixed, most, total, row, SPLITS: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr
):
    """(1, WIDTH): the mixture of a row from its parts, each of which weighs as much as its keys answered well."""
    head, number = tl.arange(0, WIDTH // SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    real = head < HEADS
    best = tl.full((WIDTH // SIZE, 1), float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        part = (row * SPLITS + split) * HEADS + head
        best = tl.maximum(best, tl.load(most + part, mask=real, other=0.0))
    sum_of_parts = tl.zeros((WIDTH // SIZE, SIZE), tl.float32)
    weight = tl.zeros((WIDTH // SIZE, 1), tl.float32)
    for split in tl.static_range(SPLITS):
        part = (row * SPLITS + split) * HEADS + head
        share = tl.exp2(tl.load(most + part, mask=real, other=0.0) - best)
        weight += share * tl.load(total + part, mask=real, other=1.0)
        sum_of_parts += share * tl.load(mixed + part * SIZE + number, mask=real & (number < SIZE), other=0.0)
    return tl.reshape(sum_of_parts / weight, (1, WIDTH))


@triton.jit
def _linear(
    x, most, total, weight, bias, gains, shift, added, out, rows, outputs, epsilon,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, SPLITS: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH)[None, :]
    there, here = output < outputs, column < INPUTS
    matrix = tl.load(weight + output[:, None] * INPUTS + column, mask=there[:, None] & here, other=0.0)
    if bias is not None:
        add = tl.load(bias + output, mask=there, other=0.0)
    if ACTIVATION == "swiglu":      # gates lie above values
        values = tl.load(weight + (outputs + output[:, None]) * INPUTS + column, mask=there[:, None] & here, other=0.0)
        if bias is not None:
            add_to_value = tl.load(bias + outputs + output, mask=there, other=0.0)
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
    for row in range(rows):
        if SPLITS > 1:
            given = weighed(x, most, total, row, SPLITS, INPUTS // SIZE, SIZE, WIDTH)
        else:
            given = tl.load(x + row * INPUTS + column, mask=here, other=0.0).to(tl.float32)
        if added is not None:
            before = tl.load(added + row * outputs + output, mask=there, other=0.0)
        if NORM is not None:
            given = normed(given, gains, shift, column, here, INPUTS, epsilon, NORM)
        made = tl.sum(matrix.to(tl.float32) * given, 1)
        if bias is not None:
            made += add.to(tl.float32)
        if ACTIVATION == "swiglu":
            value = tl.sum(values.to(tl.float32) * given, 1)
            if bias is not None:
                value += add_to_value.to(tl.float32)
            made = activated(made, "silu") * value
        else:
            made = activated(made, ACTIVATION)
        if added is not None:
            made += before.to(tl.float32)
        tl.store(out + row * outputs + output, made, mask=there)


def linear(
    x: Tensor | Parts,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Norm = NONE,
    activation: str | None = None,
    added: Tensor | None = None,
) -> Tensor:
    """(B, K) -> (B, N). Under swiglu there are 2N rows of W, gates and then values."""
    parts = x if isinstance(x, Parts) else Parts(x)
    rows, inputs, gated = len(parts.mixed), weight.shape[1], activation == "swiglu"
    outputs, width = len(weight) // (1 + gated), triton.next_power_of_2(inputs)
    block = min(max(1, TILE // (1 + gated) // width), _power_below(outputs // PROGRAMS))
    out = weight.new_empty(rows, outputs)
    _linear[(triton.cdiv(outputs, block),)](
        *parts, weight, bias, norm.gains, norm.shift, added, out, rows, outputs, norm.epsilon,
        INPUTS=inputs, WIDTH=width, BLOCK=block, NORM=norm.kind, ACTIVATION=activation,
        SPLITS=parts.splits, SIZE=parts.mixed.shape[-1], num_warps=4 if width <= TILE else 8,
        **launch_options(),
    )  # fmt: skip
    return out


def _power_below(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)

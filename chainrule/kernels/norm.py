"""Norms inside kernels, and one kernel of its own: what a part found is added to the stream, and the sum is normed.

    rms    x / √(mean x² + ε) · gains
    layer  (x - mean x) / √(variance x + ε) · gains + shift

Shapes: B rows, D width.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Norm(NamedTuple):
    kind: str | None         # rms or layer; None: it is not there
    epsilon: float
    gains: Tensor | None     # (D,)
    shift: Tensor | None     # (D,)


NONE = Norm(None, 0.0, None, None)


@triton.jit
def normed(x, gains, shift, column, here, size, epsilon, KIND: tl.constexpr):
    """(…, N) float32, of which `size` are `here` and the rest 0; gains and shift, of which each has its column."""
    if gains is not None:
        gain = tl.load(gains + column, mask=here, other=0.0)    # they come while threads agree on the rest
    if shift is not None:
        move = tl.load(shift + column, mask=here, other=0.0)
    if KIND == "layer":
        x = tl.where(here, x - (tl.sum(x, 1) / size)[:, None], 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, 1) / size + epsilon)[:, None]
    if gains is not None:
        x *= gain.to(tl.float32)
    if shift is not None:
        x += move.to(tl.float32)
    return x


@triton.jit
def _add_norm(
    x, found, gains, shift, total, out, epsilon, WIDTH: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr
):
    column = tl.arange(0, BLOCK)[None, :]
    here = column < WIDTH
    first = tl.program_id(0).to(tl.int64) * WIDTH
    value = tl.load(x + first + column, mask=here, other=0.0).to(tl.float32)
    if found is not None:
        value += tl.load(found + first + column, mask=here, other=0.0).to(tl.float32)
        kept = value.to(total.dtype.element_ty)
        tl.store(total + first + column, kept, mask=here)
        value = kept.to(tl.float32)
    tl.store(out + first + column, normed(value, gains, shift, column, here, WIDTH, epsilon, KIND), mask=here)


def add_norm(x: Tensor, found: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
    """(B, D), (B, D) or None -> (B, D) their sum, and (B, D) the sum normed."""
    rows, width = x.shape
    total, out = x if found is None else torch.empty_like(x), torch.empty_like(x)
    _add_norm[(rows,)](
        x, found, norm.gains, norm.shift, total, out, norm.epsilon,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), KIND=norm.kind, num_warps=4,
    )
    return total, out

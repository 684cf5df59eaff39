"""Float8 numbers: casts with a scale, e4m3 for activations and weights and e5m2 for gradients, and matrix products.

    scale = 2^k, so that the largest number is below the end of the range;   x8 = saturated(x · scale);   x ≈ x8 / scale

For activations and gradients the largest number is looked for in SAMPLE rows, and there is HEADROOM for the others; so
a cast reads its tensor once. Without Triton the casts are torch's, and on a CPU the products are those of the rounded
numbers.

Shapes: N rows, W columns, P rows with padding to a multiple of 16.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from chainrule import kernels
from chainrule.kernels.ops import operator

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16                             # of the sizes of float8 matrices
SAMPLE = 512                              # rows in which the largest number is looked for
HEADROOM = {E4M3: 4, E5M2: 256}           # how much larger a number of another row may be before it saturates
SMALLEST = {E4M3: 1 / 4, E5M2: 1 / 16}    # largest number of a sample, at least: a sample may be all zeros
TINY = 1e-30                              # and of a whole tensor


class Float8(NamedTuple):
    plain: Tensor          # (N, W)
    transposed: Tensor     # (W, P); empty if it was not asked for
    inverse: Tensor        # () 1 / scale
    sums: Tensor           # (W,) of the columns before the cast; empty if they were not asked for


def float8_operator(schema: str, function: Callable[..., Any], like: Callable[..., Any]) -> Any:
    """Without autocast, which would cast once more."""

    def call(first: Tensor, *args: Any) -> Any:
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *args)

    return operator(schema, call, like)


def padded(rows: int) -> int:
    return -(-rows // MULTIPLE) * MULTIPLE


def _sample(x: Tensor) -> Tensor:
    return x[:: max(1, len(x) // SAMPLE)]


class Amax(NamedTuple):
    """The largest number of a tensor, and what follows from it: the scale."""

    found: Tensor         # () float32
    smallest: float       # it counts as at least this
    limit: float          # where it comes to lie at most, when it is scaled

    def scale(self) -> Tensor:
        """The power of 2 at or below limit / amax: the exponent of that number."""
        ratio = self.limit / self.found.clamp(min=self.smallest)
        return (ratio.view(torch.int32) & 0x7F800000).view(torch.float32)


def largest(x: Tensor) -> Tensor:
    """() in float32."""
    found: Tensor = torch.linalg.vector_norm(x, math.inf, dtype=torch.float32)
    return found


def sampled_amax(sample: Tensor, dtype: torch.dtype) -> Amax:
    """Of a few rows, with headroom for the others."""
    return Amax(largest(sample), SMALLEST[dtype], torch.finfo(dtype).max / HEADROOM[dtype])


def exact_amax(found: Tensor) -> Amax:
    """Of all numbers that will be cast to e4m3."""
    return Amax(found, TINY, torch.finfo(E4M3).max)


def cast(
    x: Tensor | None, product: Tensor | None, bias: Tensor | None, activation: str | None, amax: Amax,
    dtype: torch.dtype, transposed: bool = True, sums: bool = False,
    into: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Float8:  # fmt: skip
    """x, or the activation of a product and a bias, or the gradient x through it; `into`: where the result goes."""
    given: Any = product if x is None else x
    if given.is_cuda and kernels.available():
        from chainrule.kernels import float8_cast

        return Float8(*float8_cast.cast(x, product, bias, activation, *amax, dtype, transposed, sums, into))
    value = _value(x, product, bias, activation)
    scale, most = amax.scale(), torch.finfo(dtype).max
    plain = (value * scale).clamp(-most, most).to(dtype)
    across = transpose(plain) if transposed else plain.new_empty(0, plain.shape[1])
    result = Float8(plain, across, 1 / scale, value.sum(0) if sums else value.new_empty(0))
    for place, tensor in zip(into or (), result):
        place.copy_(tensor)
    return result


def _value(x: Tensor | None, product: Tensor | None, bias: Tensor | None, activation: str | None) -> Tensor:
    """In float32, by torch."""
    if product is None or activation is None:
        return x.float()  # type: ignore[union-attr]
    before = product.float() if bias is None else product.float() + bias.float()
    return activate(before, activation) if x is None else activation_backward(x.float(), before, activation)


def activate(x: Tensor, name: str) -> Tensor:
    if name == "swiglu":
        gate, value = x.chunk(2, -1)
        return silu(gate) * value
    if name.startswith("gelu"):
        return gelu(x, approximate=_approximation(name))
    return relu(x).square() if name == "relu2" else relu(x)


def activation_backward(grad: Tensor, x: Tensor, name: str) -> Tensor:
    if name == "swiglu":
        gate, value = x.chunk(2, -1)
        return torch.cat([torch.ops.aten.silu_backward(grad * value, gate), grad * silu(gate)], -1)
    if name.startswith("gelu"):
        result: Tensor = torch.ops.aten.gelu_backward(grad, x, approximate=_approximation(name))
        return result
    return grad * (2 * relu(x) if name == "relu2" else (x > 0))


def _approximation(name: str) -> str:
    return "tanh" if name == "gelu-tanh" else "none"


def cast_rows(x: Tensor, dtype: torch.dtype, transposed: bool = True, sums: bool = False) -> Float8:
    return cast(x, None, None, None, sampled_amax(_sample(x), dtype), dtype, transposed, sums)


def cast_activation(product: Tensor, bias: Tensor | None, activation: str) -> Float8:
    amax = sampled_amax(_value(None, _sample(product), bias, activation), E4M3)
    return cast(None, product, bias, activation, amax, E4M3)


def cast_grad_before(grad: Tensor, product: Tensor, bias: Tensor | None, activation: str) -> Float8:
    """The gradient before an activation, of that after it."""
    amax = sampled_amax(_value(_sample(grad), _sample(product), bias, activation), E5M2)
    return cast(grad, product, bias, activation, amax, E5M2, sums=bias is not None)


def multiply(
    a: Tensor, b: Tensor, a_inverse: Tensor, b_inverse: Tensor, dtype: torch.dtype, bias: Tensor | None = None,
    fast: bool = False,
) -> Tensor:
    """(M, K), (N, K) -> (M, N): a bᵀ. `fast`: sums within the tensor cores, with about 14 bits."""
    if a.is_cuda:
        bias = None if bias is None else bias.to(dtype)
        return torch._scaled_mm(a, b.t(), a_inverse, b_inverse, bias=bias, out_dtype=dtype, use_fast_accum=fast)
    result = (a.float() @ b.float().t()) * (a_inverse * b_inverse)
    return (result if bias is None else result + bias).to(dtype)


def transpose(x: Tensor) -> Tensor:
    """(N, W) -> (W, P)"""
    if x.is_cuda and kernels.available():
        from chainrule.kernels import float8_cast

        return float8_cast.transpose(x)
    return torch.cat([x, x.new_zeros(-len(x) % MULTIPLE, x.shape[1])]).T.contiguous()


def cast_like(x: Tensor) -> tuple[Tensor, Tensor]:
    """Empty tensors like the transposed cast of x and its inverse scale."""
    rows = padded(x.shape[:-1].numel())
    return x.new_empty(x.shape[-1], rows, dtype=E4M3), x.new_empty((), dtype=torch.float32)

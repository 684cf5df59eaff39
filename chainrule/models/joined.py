"""Steps of a Transformer that a GPU takes together while it learns: each moves much memory and computes little.

    total = stream + found + bias;  normed = norm(total)        what a part found is added, and the sum is normed
    out = activation(product + bias)

Going back, what is learned of a bias, of gains and of a shift is summed on the way. Everywhere else each is a step by
itself, as written. By kernels of our own (chainrule/kernels), and to the compiler each is one operation.

Shapes: D width, W and H inputs and outputs of an activation.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule import kernels
from chainrule.models.operators import learns, operator
from chainrule.models.precision import working_dtype


class Sum(NamedTuple):
    """stream + found + bias, which is not made before it is normed."""

    stream: Tensor               # (…, D)
    found: Tensor | None = None  # (…, D)
    bias: Tensor | None = None   # (D,)

    def made(self) -> Tensor:
        found = self.found if self.found is None or self.bias is None else self.found + self.bias
        return self.stream if found is None else self.stream + found

    def normed(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """(…, D) the sum, and (…, D) the same normed."""
        if self.found is None or not kernels.join(self.stream):
            total = self.made()
            return total, norm(total)
        how: Any = norm
        total, normed, *_ = _add_norm(
            *self, how.weight, getattr(how, "bias", None), how.eps, isinstance(norm, nn.LayerNorm),
            working_dtype(self.stream),
        )
        return total, normed


class Back(nn.Linear):
    """The last map of a part of a block, back into the stream. Its bias `waits` for the sum, where that is joined."""

    def __init__(self, inputs: int, outputs: int, bias: bool, *, waits: bool):
        super().__init__(inputs, outputs, bias)
        self.waits = waits

    def forward(self, x: Tensor) -> Tensor:
        """(…, D), without the bias if that is `waiting`."""
        return super().forward(x) if self.waiting(x) is None else linear(x, self.weight)

    def waiting(self, like: Tensor) -> Tensor | None:
        return self.bias if self.waits and kernels.join(like) else None


def bent(product: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """(…, W), (W,) -> (…, H)"""
    out: Tensor = _bent(product, bias, activation)
    return out


def _how(gains: Tensor | None, shift: Tensor | None, epsilon: float, centred: bool) -> Any:
    from chainrule.kernels.norm import Norm

    return Norm("layer" if centred else "rms", epsilon, gains, shift)


def _add_norm_forward(
    stream: Tensor, found: Tensor, bias: Tensor | None, gains: Tensor | None, shift: Tensor | None,
    epsilon: float, centred: bool, dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    from chainrule.kernels.norm import add_norm_to_learn

    how = _how(gains, shift, epsilon, centred)
    return tuple(add_norm_to_learn(stream.contiguous(), found.contiguous(), bias, how, dtype))


def _add_norm_empty(
    stream: Tensor, found: Tensor, bias: Any, gains: Any, shift: Any, epsilon: float, centred: bool, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    rows = [stream.new_empty(stream.numel() // stream.shape[-1], dtype=torch.float32) for _ in range(2)]
    return _like(stream), _like(stream, dtype), *rows


def _add_norm_backward(
    to_total: Tensor | None, to_normed: Tensor, total: Tensor, scale: Tensor, mean: Tensor, gains: Tensor | None,
    centred: bool, dtype: torch.dtype, shared: bool,
) -> tuple[Tensor, ...]:
    from chainrule.kernels.norm import Sums, add_norm_back

    to_total = None if to_total is None else to_total.contiguous()
    sums = Sums(total, to_normed, scale, mean)
    return tuple(add_norm_back(to_total, to_normed.contiguous(), sums, _how(gains, None, 0.0, centred), dtype, shared))


def _add_norm_backward_empty(
    to_total: Any, to_normed: Any, total: Tensor, scale: Any, mean: Any, gains: Any,
    centred: bool, dtype: torch.dtype, shared: bool,
) -> tuple[Tensor, ...]:
    found = _like(total, dtype) if dtype != total.dtype else total.new_empty(0)
    return _like(total), found, total.new_empty((3, total.shape[-1]) if shared else 0, dtype=torch.float32)


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


_add_norm = operator(
    "add_norm(Tensor stream, Tensor found, Tensor? bias, Tensor? gains, Tensor? shift, float epsilon, bool centred, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    _add_norm_forward, _add_norm_empty,
)
_add_norm_back = operator(
    "add_norm_back(Tensor? to_total, Tensor to_normed, Tensor total, Tensor scale, Tensor mean, Tensor? gains, "
    "bool centred, ScalarType dtype, bool shared) -> (Tensor, Tensor, Tensor)",
    _add_norm_backward, _add_norm_backward_empty,
)


def _keep_norm(ctx: Any, inputs: Any, output: Any) -> None:
    _, found, bias, gains, shift, _, ctx.centred, _ = inputs
    total, _, scale, mean = output
    ctx.save_for_backward(total, scale, mean, gains)
    ctx.dtype, ctx.columns = found.dtype, [None if x is None else x.dtype for x in (gains, shift, bias)]
    ctx.mark_non_differentiable(scale, mean)
    ctx.set_materialize_grads(False)


def _learn_norm(ctx: Any, to_total: Tensor | None, to_normed: Tensor | None, *_: Any) -> Any:
    total, scale, mean, gains = ctx.saved_tensors
    to_normed = torch.zeros_like(total) if to_normed is None else to_normed
    shared = any(dtype is not None for dtype in ctx.columns)
    of_stream, of_found, columns = _add_norm_back(
        to_total, to_normed, total, scale, mean, gains, ctx.centred, ctx.dtype, shared
    )
    if ctx.dtype == total.dtype:
        of_found = of_stream
    of_gains, of_shift, of_bias = (
        None if dtype is None else columns[row].to(dtype) for row, dtype in enumerate(ctx.columns)
    )
    return of_stream, of_found, of_bias, of_gains, of_shift, None, None, None


learns("add_norm", _learn_norm, _keep_norm)


def _bend(product: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    from chainrule.kernels.activation import bend

    return bend(product.contiguous(), bias, activation)


def _bend_back(above: Tensor, product: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    from chainrule.kernels.activation import bend_back

    return bend_back(above.contiguous(), product.contiguous(), bias, activation)


def _bent_empty(product: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return product.new_empty(*product.shape[:-1], product.shape[-1] // (2 if activation == "swiglu" else 1))


def _bent_back_empty(above: Tensor, product: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    return _like(product), above.new_empty(0 if bias is None else len(bias), dtype=torch.float32)


_bent = operator("bent(Tensor product, Tensor? bias, str activation) -> Tensor", _bend, _bent_empty)
_bent_back = operator(
    "bent_back(Tensor above, Tensor product, Tensor? bias, str activation) -> (Tensor, Tensor)",
    _bend_back, _bent_back_empty,
)


def _keep_product(ctx: Any, inputs: Any, output: Tensor) -> None:
    product, bias, ctx.activation = inputs
    ctx.save_for_backward(product, bias)


def _learn_product(ctx: Any, above: Tensor) -> Any:
    product, bias = ctx.saved_tensors
    below, sums = _bent_back(above, product, bias, ctx.activation)
    return below, None if bias is None else sums.to(bias.dtype), None


learns("bent", _learn_product, _keep_product)

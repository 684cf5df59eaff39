"""Float8 training of a Transformer's blocks: a linear layer and a feed-forward layer as operators with a backward pass.

    y = x Wᵀ        ∇x = g W        ∇W = gᵀ x        x and W in e4m3, g in e5m2, each with one scale; sums in float32

Weights are cast once a step (`Casts.refresh`) from the float32 parameters that the optimizer updates. A feed-forward
layer is one operator, so that its activations, and the gradients before them, are written in float8 alone. The gradient
of a small weight is a product of long rows with few results, which float8 does not make faster: it is not in float8.

Shapes: N rows, I inputs, O outputs, P rows with padding to a multiple of 16.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.device import Switch, working_dtype
from chainrule.errors import UserError
from chainrule.kernels.float8 import (
    E4M3,
    E5M2,
    MULTIPLE,
    Float8,
    cast,
    cast_activation,
    cast_grad_before,
    cast_like,
    cast_rows,
    exact_amax,
    float8_operator,
    multiply,
    padded,
)
from chainrule.kernels.ops import register_backward

MIN_WEIGHT = 1 << 20    # numbers of a linear layer's weight from which on its gradient is faster in float8
LAYERS = ("project", "queries", "memory", "out", "up")    # names of the linear layers of a block

_in_training = Switch()
in_training = _in_training.set    # `with in_training(True):` layers compute in float8 where they were prepared


# Which layers compute in float8


class Casts:
    """The weights of a model in float8, as buffers of its layers that are not saved."""

    def __init__(self, model: nn.Module):
        linears = [(name, module) for name, module in model.named_modules()
                   if isinstance(module, nn.Linear) and ".blocks." in name and name.rpartition(".")[2] in LAYERS]
        if any(hasattr(module, "parametrizations") for module in model.modules()):
            raise UserError("train.precision=float8 does not work with adapters (LoRA): use train.precision=bfloat16.")
        self.layers = [module for _, module in linears if not any(size % MULTIPLE for size in module.weight.shape)]
        if not self.layers:
            name, first = linears[0] if linears else ("", None)
            found = "it has none" if first is None else f"{name} is {first.out_features} x {first.in_features}"
            raise UserError(
                "train.precision=float8 is for the linear layers of a Transformer's blocks, with sizes that are "
                f"multiples of {MULTIPLE}; in this model {found}. Use train.precision=bfloat16."
            )
        for layer in self.layers:
            weight = layer.weight.detach()
            layer.register_buffer("weight8", torch.empty_like(weight, dtype=E4M3), persistent=False)
            layer.register_buffer("weight8_t", torch.empty_like(weight.T, dtype=E4M3).contiguous(), persistent=False)
            layer.register_buffer("inverse8", torch.ones((), device=weight.device), persistent=False)

    @torch.no_grad()
    def refresh(self) -> None:
        """After the weights have changed."""
        weights = [layer.weight.detach() for layer in self.layers]
        for layer, weight, found in zip(self.layers, weights, torch._foreach_norm(weights, math.inf), strict=True):
            into: Any = layer.weight8, layer.weight8_t, layer.inverse8
            cast(weight, None, None, None, exact_amax(found), E4M3, into=into)


def is_on() -> bool:
    return _in_training.on


def use(x: Tensor, *layers: nn.Module) -> bool:
    """Whether the products of these layers with x are computed in float8."""
    prepared = all(getattr(layer, "weight8", None) is not None for layer in layers)
    return _in_training.on and prepared and torch.is_grad_enabled() and x.numel() > 0


def linear(x: Tensor, layer: Any) -> Tensor:
    """(…, I) -> (…, O): the layer, in float8 where that is asked for."""
    if not use(x, layer):
        out: Tensor = layer(x)
        return out
    casts = layer.weight8, layer.weight8_t, layer.inverse8
    result: Tensor = float8_linear(x, layer.weight, layer.bias, *casts, working_dtype(x))[0]
    return result


def feed_forward(x: Tensor, up: Any, out: Any, activation: str) -> Tensor:
    """(…, I) -> (…, I): out(activation(up(x)))"""
    casts = up.weight8, up.weight8_t, up.inverse8, out.weight8, out.weight8_t, out.inverse8
    result: Tensor = float8_feed_forward(
        x, up.weight, up.bias, out.weight, out.bias, *casts, activation, working_dtype(x)
    )[0]
    return result


# A linear layer


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, weight8: Tensor, weight8_t: Tensor, inverse: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    x8 = cast_rows(_flat(x), E4M3, transposed=weight.numel() >= MIN_WEIGHT)
    out = multiply(x8.plain, weight8, x8.inverse, inverse, dtype, bias, fast=True)
    return out.view(*x.shape[:-1], len(weight)), x8.transposed, x8.inverse


def _linear_like(x: Tensor, weight: Tensor, *args: Any) -> tuple[Tensor, ...]:
    out, (x8_t, inverse) = x.new_empty(*x.shape[:-1], len(weight), dtype=args[-1]), cast_like(x)
    return out, x8_t if weight.numel() >= MIN_WEIGHT else x.new_empty(0, x.shape[-1], dtype=E4M3), inverse


def _linear_backward(
    grad_out: Tensor, x: Tensor | None, x8_t: Tensor, x_inverse: Tensor, weight8_t: Tensor, inverse: Tensor,
    needs_weight: bool, needs_bias: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """`x`: for a small weight, whose gradient is computed in the dtype of grad_out; else None."""
    rows = _flat(grad_out)
    grad8 = cast_rows(rows, E5M2, needs_weight and x is None, needs_bias)
    grad_x = multiply(grad8.plain, weight8_t, grad8.inverse, inverse, grad_out.dtype).to(dtype)
    if not needs_weight:
        grad_weight = x_inverse.new_empty(0)
    elif x is None:
        grad_weight = _grad_weight(grad8, x8_t, x_inverse)
    else:
        grad_weight = (rows.T @ _flat(x).to(rows.dtype)).float()
    return grad_x.view(*grad_out.shape[:-1], len(weight8_t)), grad_weight, grad8.sums


def _grad_weight(grad8: Float8, x8_t: Tensor, x_inverse: Tensor) -> Tensor:
    """(O, I)"""
    return multiply(grad8.transposed, x8_t, grad8.inverse, x_inverse, torch.float32)


def _linear_backward_like(
    grad_out: Tensor, x: Tensor | None, x8_t: Tensor, x_inverse: Tensor, weight8_t: Tensor, inverse: Tensor,
    needs_weight: bool, needs_bias: bool, dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    inputs, outputs = weight8_t.shape
    grad_x = grad_out.new_empty(*grad_out.shape[:-1], inputs, dtype=dtype)
    grad_weight = inverse.new_empty((outputs, inputs) if needs_weight else 0)
    return grad_x, grad_weight, inverse.new_empty(outputs if needs_bias else 0)


float8_linear: Callable[..., Any] = float8_operator(
    "float8_linear(Tensor x, Tensor weight, Tensor? bias, Tensor weight8, Tensor weight8_t, Tensor inverse, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    _linear, _linear_like,
)
float8_linear_backward = float8_operator(
    "float8_linear_backward(Tensor grad_out, Tensor? x, Tensor x8_t, Tensor x_inverse, Tensor weight8_t, "
    "Tensor inverse, bool needs_weight, bool needs_bias, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    _linear_backward, _linear_backward_like,
)


def _linear_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, _, weight8_t, inverse, _ = inputs
    _, x8_t, x_inverse = output
    ctx.save_for_backward(None if weight.numel() >= MIN_WEIGHT else x, x8_t, x_inverse, weight8_t, inverse)
    ctx.dtype, ctx.has_bias = x.dtype, bias is not None
    ctx.mark_non_differentiable(x8_t, x_inverse)
    ctx.set_materialize_grads(False)


def _linear_grad(ctx: Any, grad_out: Tensor, *_: Any) -> Any:
    needs = ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[2]
    grads = float8_linear_backward(grad_out, *ctx.saved_tensors, *needs, ctx.dtype)
    kept = (grad if needed else None for grad, needed in zip(grads, (True, *needs)))
    return *kept, None, None, None, None


register_backward("float8_linear", _linear_grad, _linear_setup_context)


# A feed-forward layer: up, activation, out


def _feed_forward(
    x: Tensor, up: Tensor, up_bias: Tensor | None, out: Tensor, out_bias: Tensor | None,
    up8: Tensor, up8_t: Tensor, up_inverse: Tensor, out8: Tensor, out8_t: Tensor, out_inverse: Tensor,
    activation: str, dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    x8 = cast_rows(_flat(x), E4M3)
    product = multiply(x8.plain, up8, x8.inverse, up_inverse, dtype, fast=True)
    hidden8 = cast_activation(product, up_bias, activation)
    result = multiply(hidden8.plain, out8, hidden8.inverse, out_inverse, dtype, out_bias, fast=True)
    result = result.view(*x.shape[:-1], len(out))
    return result, x8.transposed, x8.inverse, product, hidden8.transposed, hidden8.inverse


def _feed_forward_like(x: Tensor, up: Tensor, up_bias: Any, out: Tensor, *args: Any) -> tuple[Tensor, ...]:
    dtype, rows = args[-1], x.shape[:-1].numel()
    result = x.new_empty(*x.shape[:-1], len(out), dtype=dtype)
    hidden8_t = x.new_empty(out.shape[1], padded(rows), dtype=E4M3)
    product = x.new_empty(rows, len(up), dtype=dtype)
    return result, *cast_like(x), product, hidden8_t, x.new_empty((), dtype=torch.float32)


def _feed_forward_backward(
    grad_out: Tensor, x8_t: Tensor, x_inverse: Tensor, product: Tensor, hidden8_t: Tensor, hidden_inverse: Tensor,
    up_bias: Tensor | None, up8_t: Tensor, up_inverse: Tensor, out8_t: Tensor, out_inverse: Tensor,
    activation: str, has_out_bias: bool, dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    grad8 = cast_rows(_flat(grad_out), E5M2, sums=has_out_bias)
    grad_hidden = multiply(grad8.plain, out8_t, grad8.inverse, out_inverse, grad_out.dtype)
    before8 = cast_grad_before(grad_hidden, product, up_bias, activation)
    grad_x = multiply(before8.plain, up8_t, before8.inverse, up_inverse, grad_out.dtype).to(dtype)
    return (
        grad_x.view(*grad_out.shape[:-1], len(up8_t)),
        _grad_weight(before8, x8_t, x_inverse), before8.sums,
        _grad_weight(grad8, hidden8_t, hidden_inverse), grad8.sums,
    )  # fmt: skip


def _feed_forward_backward_like(
    grad_out: Tensor, x8_t: Tensor, x_inverse: Tensor, product: Tensor, hidden8_t: Tensor, hidden_inverse: Tensor,
    up_bias: Tensor | None, up8_t: Tensor, up_inverse: Tensor, out8_t: Tensor, out_inverse: Tensor,
    activation: str, has_out_bias: bool, dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    inputs, wide = up8_t.shape
    hidden, outputs = out8_t.shape
    return (
        grad_out.new_empty(*grad_out.shape[:-1], inputs, dtype=dtype),
        up_inverse.new_empty(wide, inputs), up_inverse.new_empty(0 if up_bias is None else wide),
        up_inverse.new_empty(outputs, hidden), up_inverse.new_empty(outputs if has_out_bias else 0),
    )  # fmt: skip


float8_feed_forward: Callable[..., Any] = float8_operator(
    "float8_feed_forward(Tensor x, Tensor up, Tensor? up_bias, Tensor out, Tensor? out_bias, Tensor up8, Tensor up8_t, "
    "Tensor up_inverse, Tensor out8, Tensor out8_t, Tensor out_inverse, str activation, ScalarType dtype) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _feed_forward, _feed_forward_like,
)
float8_feed_forward_backward = float8_operator(
    "float8_feed_forward_backward(Tensor grad_out, Tensor x8_t, Tensor x_inverse, Tensor product, Tensor hidden8_t, "
    "Tensor hidden_inverse, Tensor? up_bias, Tensor up8_t, Tensor up_inverse, Tensor out8_t, Tensor out_inverse, "
    "str activation, bool has_out_bias, ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _feed_forward_backward, _feed_forward_backward_like,
)


def _feed_forward_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, _, up_bias, _, out_bias, _, up8_t, up_inverse, _, out8_t, out_inverse, ctx.activation, _ = inputs
    ctx.save_for_backward(*output[1:], up_bias, up8_t, up_inverse, out8_t, out_inverse)
    ctx.dtype, ctx.has_out_bias = x.dtype, out_bias is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _feed_forward_grad(ctx: Any, grad_out: Tensor, *_: Any) -> Any:
    grads = float8_feed_forward_backward(grad_out, *ctx.saved_tensors, ctx.activation, ctx.has_out_bias, ctx.dtype)
    needed = zip(grads, ctx.needs_input_grad)
    return *(grad if needs else None for grad, needs in needed), *[None] * 8


register_backward("float8_feed_forward", _feed_forward_grad, _feed_forward_setup_context)

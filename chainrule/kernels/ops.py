"""The operators behind joined.py: kernels going up and going back, as torch's autograd and its compiler know them.

    total, normed, scale, mean = add_norm(stream, found, gains, shift, ε, centred, dtype)
    out = bent(product, bias, activation)
    queries, keys, values = heads(product, cos, sin, H, G, ε, norm)

`scale` and `mean` of each row are for the way back. There, what is learned of a bias, of gains and of a shift is summed
on the way.

Shapes: N rows, D width, W and H inputs and outputs of an activation, or H and G heads of queries and of keys.
"""

from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

# Operators of our own: to the compiler each is one operation. Torch's decorator that does the same would load it.

OURS: Any = torch.library.Library("chainrule", "DEF")
_every: list[Any] = []


def operator(schema: str, function: Callable[..., Any], empty: Callable[..., Any]) -> Any:
    """The function as an operator of torch. `empty` makes tensors like those that it answers with."""
    name = schema.partition("(")[0]
    OURS.define(schema)
    OURS.impl(name, _where_tensors_are(function), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{OURS.ns}::{name}", empty, lib=OURS)
    packet = getattr(torch.ops.chainrule, name)
    _every.append(packet.default)
    return packet


def _where_tensors_are(function: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the device that is the current one, which need not be theirs."""

    def call(*given: Any) -> Any:
        device = next(each.device for each in given if isinstance(each, Tensor))
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return function(*given)

    return call


def register_backward(name: str, backward: Callable[..., Any], setup: Callable[..., None]) -> None:
    """Gradients go through an operator."""
    torch.library.register_autograd(f"{OURS.ns}::{name}", backward, setup_context=setup, lib=OURS)


def register_fallbacks() -> None:
    """Torch's compiler is told of all operators, before it meets them.

    One that is new to it is announced in its log with all that leads to it, and before torch 2.13 that is written out
    though nobody reads the log. Where operators follow upon each other, as those of joined.py do, it takes for ever.
    """
    from torch._inductor.lowering import lowerings, make_fallback

    for each in _every:
        if each not in lowerings:
            make_fallback(each)


def _kernel(module: str, name: str) -> Callable[..., Any]:
    """Loaded, with Triton, once it is called."""
    return lambda *given: getattr(import_module(f"chainrule.kernels.{module}"), name)(*given)


def _new(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


def _add_norm(stream: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *_, dtype = given
    scale, mean = (stream.new_empty(stream.shape[:-1].numel(), dtype=torch.float32) for _ in range(2))
    return _new(stream), _new(stream, dtype), scale, mean


def _add_norm_back(to_total: Any, to_normed: Any, total: Tensor, *given: Any) -> tuple[Tensor, ...]:
    *_, dtype, shared = given
    of_found = total.new_empty(0) if dtype == total.dtype else _new(total, dtype)
    return _new(total), of_found, total.new_empty((2, total.shape[-1]) if shared else 0, dtype=torch.float32)


add_norm = operator(
    "add_norm(Tensor stream, Tensor found, Tensor? gains, Tensor? shift, float epsilon, bool centred, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    _kernel("add_norm", "add_norm_to_learn"), _add_norm,
)
add_norm_back = operator(
    "add_norm_back(Tensor? to_total, Tensor to_normed, Tensor total, Tensor scale, Tensor mean, Tensor? gains, "
    "bool centred, ScalarType dtype, bool shared) -> (Tensor, Tensor, Tensor)",
    _kernel("add_norm", "add_norm_back"), _add_norm_back,
)


def _keep_sum(ctx: Any, inputs: Any, output: Any) -> None:
    _, found, gains, shift, _, ctx.centred, _ = inputs
    total, _, scale, mean = output
    ctx.save_for_backward(total, scale, mean, gains)
    ctx.dtype, ctx.columns = found.dtype, [None if x is None else x.dtype for x in (gains, shift)]
    ctx.mark_non_differentiable(scale, mean)
    ctx.set_materialize_grads(False)


def _learn_sum(ctx: Any, to_total: Tensor | None, to_normed: Tensor | None, *_: Any) -> Any:
    total, scale, mean, gains = ctx.saved_tensors
    to_normed = torch.zeros_like(total) if to_normed is None else to_normed
    shared = any(ctx.columns)
    of_stream, of_found, columns = add_norm_back(
        to_total, to_normed, total, scale, mean, gains, ctx.centred, ctx.dtype, shared
    )
    of_gains, of_shift = (dtype and columns[row].to(dtype) for row, dtype in enumerate(ctx.columns))
    of_found = of_stream if ctx.dtype == total.dtype else of_found
    return of_stream, of_found, of_gains, of_shift, None, None, None


register_backward("add_norm", _learn_sum, _keep_sum)


def _bent(product: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return product.new_empty(*product.shape[:-1], product.shape[-1] // (2 if activation == "swiglu" else 1))


def _bent_back(above: Tensor, product: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    return _new(product), above.new_empty(0 if bias is None else len(bias), dtype=torch.float32)


bent: Callable[[Tensor, Tensor | None, str], Tensor] = operator(                # (…, W), (W,) -> (…, H)
    "bent(Tensor product, Tensor? bias, str activation) -> Tensor", _kernel("bias_act", "bend"), _bent
)
bent_back = operator(
    "bent_back(Tensor above, Tensor product, Tensor? bias, str activation) -> (Tensor, Tensor)",
    _kernel("bias_act", "bend_back"), _bent_back,
)


def _keep_product(ctx: Any, inputs: Any, output: Tensor) -> None:
    product, bias, ctx.activation = inputs
    ctx.save_for_backward(product, bias)


def _learn_product(ctx: Any, above: Tensor) -> Any:
    product, bias = ctx.saved_tensors
    below, sums = bent_back(above, product, bias, ctx.activation)
    return below, None if bias is None else sums.to(bias.dtype), None


register_backward("bent", _learn_product, _keep_product)


def _heads(product: Tensor, cos: Any, sin: Any, queries: int, keys: int, *how: Any) -> tuple[Tensor, ...]:
    size = product.shape[-1] // (queries + 2 * keys)
    return tuple(product.new_empty(*product.shape[:-1], count, size) for count in (queries, keys, keys))


heads: Callable[..., tuple[Tensor, Tensor, Tensor]] = operator(
    "heads(Tensor product, Tensor? cos, Tensor? sin, int queries, int keys, float epsilon, str? norm) "
    "-> (Tensor, Tensor, Tensor)",
    _kernel("qk_norm_rope", "heads"), _heads,
)
heads_back = operator(
    "heads_back(Tensor of_queries, Tensor of_keys, Tensor of_values, Tensor product, Tensor? cos, Tensor? sin, "
    "float epsilon, str? norm) -> Tensor",
    _kernel("qk_norm_rope", "heads_back"), lambda of_queries, of_keys, of_values, product, *_: _new(product),
)


def _keep_heads(ctx: Any, inputs: Any, output: Any) -> None:
    product, cos, sin, _, _, *ctx.how = inputs
    ctx.save_for_backward(product, cos, sin)


def _learn_heads(ctx: Any, *of_heads: Tensor) -> Any:
    return heads_back(*of_heads, *ctx.saved_tensors, *ctx.how), None, None, None, None, None, None


register_backward("heads", _learn_heads, _keep_heads)

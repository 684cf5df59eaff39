"""Fused operators for training, as torch's autograd and torch.compile know them; and marks for torch.compile.

    total, normed, rstd, mean = add_norm(x, delta, weight, bias, ε, subtract_mean, dtype)      add_norm.py
    out = bias_act(product, bias, activation)                                                  bias_act.py
    queries, keys, values = qk_norm_rope(packed, cos, sin, H, G, ε, norm)                      qk_norm_rope.py
    normed, rstd = norm(x, weight, ε)                                                          on a CPU: cpu/layers.py
    out = dropout(x, p, key)                                                                   on a CPU: cpu/layers.py
    @not_compiled                                       a graph break: one compiled graph ends here, the next one begins

`rstd` and `mean` of each row are for the backward pass. Each operator has a kernel, and a `_like` function that makes
empty tensors of the shapes that it returns, from which the compiler learns them.

Shapes: N rows, D width, W and H inputs and outputs of an activation, or H query heads and G key/value heads.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

import torch
from torch import Tensor

from chainrule import kernels

# How operators are defined. The decorator torch.library.custom_op does the same, but loads the compiler.

LIBRARY: Any = torch.library.Library("chainrule", "DEF")
_operators: dict[str, "Operator"] = {}


class Operator:
    """An operator of torch. On a CPU it is called as a Python function with a gradient: torch's way takes longer than a
    small kernel."""

    def __init__(self, packet: Any, function: Callable[..., Any]):
        self.packet, self.on_cpu = packet, function

    def __call__(self, *args: Any) -> Any:
        direct = not torch.compiler.is_compiling() and _device(args).type == "cpu"
        return self.on_cpu(*args) if direct else self.packet(*args)


def operator(schema: str, function: Callable[..., Any], like: Callable[..., Any]) -> Operator:
    """`function` as an operator of torch. `like` makes empty tensors with the shapes of its results."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, _on_their_device(function), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{LIBRARY.ns}::{name}", like, lib=LIBRARY)
    packet = getattr(torch.ops.chainrule, name)
    _operators[name] = Operator(packet, function)
    return _operators[name]


def register_backward(name: str, backward: Callable[..., Any], setup_context: Callable[..., None]) -> None:
    torch.library.register_autograd(f"{LIBRARY.ns}::{name}", backward, setup_context=setup_context, lib=LIBRARY)
    plain = _operators[name].on_cpu

    def forward(ctx: Any, *args: Any) -> Any:    # by setup_context alone torch reads signatures in each call
        output = plain(*args)
        setup_context(ctx, args, output)
        return output

    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(name, (torch.autograd.Function,), parts)
    _operators[name].on_cpu = function.apply


def register_fallbacks() -> None:
    """Tells torch's compiler about all operators before it meets them.

    It logs an unknown operator with the whole expression that leads to it, and before torch 2.13 it builds that text
    even if the log is not written. Where operators follow one another, as here, the text grows without bound.
    """
    from torch._inductor.lowering import lowerings, make_fallback

    for each in _operators.values():
        if each.packet.default not in lowerings:
            make_fallback(each.packet.default)


def _on_their_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the current device, which need not be that of the tensors."""

    def call(*args: Any) -> Any:
        device = _device(args)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return function(*args)

    return call


def _device(args: Iterable[Any]) -> torch.device:
    return next(each.device for each in args if isinstance(each, Tensor))


def _kernel(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that is loaded when it is first called: in Triton for a GPU, in C++ for the CPU."""

    def call(*args: Any) -> Any:
        where = module if _device(args).type == "cuda" else "cpu.layers"
        return getattr(import_module(f"chainrule.kernels.{where}"), name)(*args)

    return call


def _new(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


ACTIVATIONS = ("relu", "relu2", "gelu", "gelu-tanh", "swiglu")
FUSED: dict[str, set[str | None]] = {
    "cuda": {None, "rms", "layer", *ACTIVATIONS}, "cpu": {None, "rms", "rms alone", "relu2", "dropout"},
}
"""The norms (None: no norm; alone: without a sum), activations and dropout in the kernels of a device. What torch
computes at once, such as LayerNorm and GELU on a CPU and a norm alone on a GPU, is no faster as an operator of ours."""


def fuses(x: Tensor, what: str | None) -> bool:
    """Whether a layer should compute this norm, activation or dropout by an operator."""
    return kernels.use_in_training(x) and what in FUSED[x.device.type]


# Adding to the residual stream, and the norm of the sum


def _add_norm_like(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    *_, dtype = args
    rstd, mean = (x.new_empty(x.shape[:-1].numel(), dtype=torch.float32) for _ in range(2))
    return _new(x), _new(x, dtype), rstd, mean


def _add_norm_backward_like(grad_total: Any, grad_normed: Any, total: Tensor, *args: Any) -> tuple[Tensor, ...]:
    *_, dtype, has_parameters = args
    grad_delta = total.new_empty(0) if dtype == total.dtype else _new(total, dtype)
    columns = total.new_empty((2, total.shape[-1]) if has_parameters else 0, dtype=torch.float32)
    return _new(total), grad_delta, columns


add_norm = operator(
    "add_norm(Tensor x, Tensor delta, Tensor? weight, Tensor? bias, float epsilon, bool subtract_mean, "
    "ScalarType dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    _kernel("add_norm", "add_norm_forward"), _add_norm_like,
)
add_norm_backward = operator(
    "add_norm_backward(Tensor? grad_total, Tensor grad_normed, Tensor total, Tensor rstd, Tensor mean, Tensor? weight, "
    "bool subtract_mean, ScalarType dtype, bool has_parameters) -> (Tensor, Tensor, Tensor)",
    _kernel("add_norm", "add_norm_backward"), _add_norm_backward_like,
)


def _add_norm_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    _, delta, weight, bias, _, ctx.subtract_mean, _ = inputs
    total, _, rstd, mean = output
    ctx.save_for_backward(total, rstd, mean, weight)
    ctx.dtype, ctx.parameter_dtypes = delta.dtype, [None if x is None else x.dtype for x in (weight, bias)]
    ctx.mark_non_differentiable(rstd, mean)
    ctx.set_materialize_grads(False)


def _add_norm_grad(ctx: Any, grad_total: Tensor | None, grad_normed: Tensor | None, *_: Any) -> Any:
    total, rstd, mean, weight = ctx.saved_tensors
    grad_normed = torch.zeros_like(total) if grad_normed is None else grad_normed
    has_parameters = any(ctx.parameter_dtypes)
    grad_x, grad_delta, columns = add_norm_backward(
        grad_total, grad_normed, total, rstd, mean, weight, ctx.subtract_mean, ctx.dtype, has_parameters
    )
    grad_weight, grad_bias = (dtype and columns[row].to(dtype) for row, dtype in enumerate(ctx.parameter_dtypes))
    grad_delta = grad_x if ctx.dtype == total.dtype else grad_delta
    return grad_x, grad_delta, grad_weight, grad_bias, None, None, None


register_backward("add_norm", _add_norm_grad, _add_norm_setup_context)


def _norm_like(x: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return _new(x), x.new_empty(x.shape[:-1].numel(), dtype=torch.float32)


def _norm_backward_like(grad: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    return _new(x), x.new_empty(0 if weight is None else (1, len(weight)), dtype=torch.float32)


norm: Callable[[Tensor, Tensor | None, float], tuple[Tensor, Tensor]] = operator(
    "norm(Tensor x, Tensor? weight, float epsilon) -> (Tensor, Tensor)", _kernel("add_norm", "norm_forward"), _norm_like
)
norm_backward = operator(
    "norm_backward(Tensor grad, Tensor x, Tensor rstd, Tensor? weight) -> (Tensor, Tensor)",
    _kernel("add_norm", "norm_backward"), _norm_backward_like,
)


def _norm_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, output[1], weight)
    ctx.mark_non_differentiable(output[1])


def _norm_grad(ctx: Any, grad: Tensor, _: Any) -> Any:
    x, rstd, weight = ctx.saved_tensors
    grad_x, columns = norm_backward(grad, x, rstd, weight)
    return grad_x, None if weight is None else columns[0].to(weight.dtype), None


register_backward("norm", _norm_grad, _norm_setup_context)


# Bias and activation


def _bias_act_like(product: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return product.new_empty(*product.shape[:-1], product.shape[-1] // (2 if activation == "swiglu" else 1))


def _bias_act_backward_like(
    grad_out: Tensor, product: Tensor, bias: Tensor | None, activation: str
) -> tuple[Tensor, Tensor]:
    return _new(product), grad_out.new_empty(0 if bias is None else len(bias), dtype=torch.float32)


bias_act: Callable[[Tensor, Tensor | None, str], Tensor] = operator(                # (…, W), (W,) -> (…, H)
    "bias_act(Tensor product, Tensor? bias, str activation) -> Tensor",
    _kernel("bias_act", "bias_act_forward"), _bias_act_like,
)
bias_act_backward = operator(
    "bias_act_backward(Tensor grad_out, Tensor product, Tensor? bias, str activation) -> (Tensor, Tensor)",
    _kernel("bias_act", "bias_act_backward"), _bias_act_backward_like,
)


def _bias_act_setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
    product, bias, ctx.activation = inputs
    ctx.save_for_backward(product, bias)


def _bias_act_grad(ctx: Any, grad_out: Tensor) -> Any:
    product, bias = ctx.saved_tensors
    grad_product, grad_bias = bias_act_backward(grad_out, product, bias, ctx.activation)
    return grad_product, None if bias is None else grad_bias.to(bias.dtype), None


register_backward("bias_act", _bias_act_grad, _bias_act_setup_context)


# QK norm and RoPE


def _qk_norm_rope_like(packed: Tensor, cos: Any, sin: Any, heads: int, kv_heads: int, *_: Any) -> tuple[Tensor, ...]:
    size = packed.shape[-1] // (heads + 2 * kv_heads)
    return tuple(packed.new_empty(*packed.shape[:-1], count, size) for count in (heads, kv_heads, kv_heads))


qk_norm_rope: Callable[..., tuple[Tensor, Tensor, Tensor]] = operator(
    "qk_norm_rope(Tensor packed, Tensor? cos, Tensor? sin, int heads, int kv_heads, float epsilon, str? norm) "
    "-> (Tensor, Tensor, Tensor)",
    _kernel("qk_norm_rope", "qk_norm_rope_forward"), _qk_norm_rope_like,
)
qk_norm_rope_backward = operator(
    "qk_norm_rope_backward(Tensor grad_queries, Tensor grad_keys, Tensor grad_values, Tensor packed, "
    "Tensor? cos, Tensor? sin, float epsilon, str? norm) -> Tensor",
    _kernel("qk_norm_rope", "qk_norm_rope_backward"), lambda queries, keys, values, packed, *_: _new(packed),
)


def _qk_norm_rope_setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    packed, cos, sin, _, _, *ctx.how = inputs
    ctx.save_for_backward(packed, cos, sin)


def _qk_norm_rope_grad(ctx: Any, *grads: Tensor) -> Any:
    return qk_norm_rope_backward(*grads, *ctx.saved_tensors, *ctx.how), None, None, None, None, None, None


register_backward("qk_norm_rope", _qk_norm_rope_grad, _qk_norm_rope_setup_context)


# Dropout, on a CPU

dropout: Callable[[Tensor, float, int], Tensor] = operator(
    "dropout(Tensor x, float p, int key) -> Tensor", _kernel("", "dropout"), lambda x, *_: _new(x)
)


dropout_backward = operator(
    "dropout_backward(Tensor grad_out, float p, int key) -> Tensor", _kernel("", "dropout"), lambda x, *_: _new(x)
)


def _dropout_setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, *ctx.mask = inputs


def _dropout_grad(ctx: Any, grad_out: Tensor) -> Any:
    return dropout_backward(grad_out, *ctx.mask), None, None


register_backward("dropout", _dropout_grad, _dropout_setup_context)


# Functions that torch.compile must not compile. torch.compiler.disable would load it wherever models are used.

Function = TypeVar("Function", bound=Callable[..., Any])

_marks: list["_Mark"] = []


class _Mark:
    def __init__(self, function: Any):
        self.plain = self.now = function
        _marks.append(self)

    def disable(self) -> None:
        if self.now is self.plain:
            self.now = torch.compiler.disable(self.plain)

    def restore(self) -> None:
        self.now = self.plain


def not_compiled(function: Function) -> Function:
    mark = _Mark(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return mark.now(*args, **kwargs)

    return call  # type: ignore[return-value]


def compiled(function: Function) -> Function:
    """`function` through torch.compile, which leaves marked functions alone and knows our operators."""
    for mark in _marks:
        mark.disable()
    register_fallbacks()
    return torch.compile(function)  # type: ignore[return-value]


def reset_marks() -> None:
    """All functions as they were before anything was compiled."""
    for mark in _marks:
        mark.restore()

"""The kernels in plain torch: a stand-in for them where there is no Triton, and the reference for their tests.

Shapes: B rows, H query heads, G key/value heads, C capacity, d numbers in a head.
"""

import math
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from chainrule.kernels import ops
from chainrule.layers.blocks import ACTIVATIONS
from chainrule.layers.positions import apply_rope


class Norm(NamedTuple):
    kind: str | None
    epsilon: float
    weight: Tensor | None
    bias: Tensor | None


class AttentionParts(NamedTuple):
    mixed: Tensor


NO_NORM = Norm(None, 0.0, None, None)


def normed(x: Tensor, norm: Any) -> Tensor:
    weight, bias = (None if part is None else part.float() for part in (norm.weight, norm.bias))
    if norm.kind == "rms":
        return rms_norm(x.float(), x.shape[-1:], weight, norm.epsilon)
    return layer_norm(x.float(), x.shape[-1:], weight, bias, norm.epsilon) if norm.kind == "layer" else x.float()


def fused_add_norm(x: Tensor, delta: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    total = x if delta is None else x + delta
    return total, normed(total, norm).to(x.dtype)


def add_norm_forward(
    x: Tensor, delta: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float, subtract_mean: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    total = (x.float() + delta.float()).to(x.dtype)
    rows = total.float().flatten(0, -2)
    mean = rows.mean(1) if subtract_mean else torch.zeros(len(rows))
    rstd = ((rows - mean[:, None]).square().mean(1) + epsilon).rsqrt()
    norm = Norm("layer" if subtract_mean else "rms", epsilon, weight, bias)
    return total, normed(total, norm).to(dtype), rstd, mean


def add_norm_backward(
    grad_total: Tensor | None, grad_normed: Tensor, total: Tensor, rstd: Tensor, mean: Tensor, weight: Tensor | None,
    subtract_mean: bool, dtype: torch.dtype, has_parameters: bool,
) -> tuple[Tensor, ...]:
    """By autograd. The kernel gets rstd and not ε, so ε is computed from it."""
    with torch.enable_grad():
        x = total.detach().double().requires_grad_()
        gain = (torch.ones(x.shape[-1]) if weight is None else weight.detach()).double().requires_grad_()
        bias = torch.zeros(x.shape[-1], dtype=torch.float64, requires_grad=True)
        around = x - x.mean(-1, keepdim=True) if subtract_mean else x
        level = around.square().mean(-1, keepdim=True)
        epsilon = (rstd.double().view(*x.shape[:-1], 1) ** -2 - level).detach()
        result = around * (level + epsilon).rsqrt() * gain + bias
        grad_x, grad_weight, grad_bias = torch.autograd.grad(result, (x, gain, bias), grad_normed.double())
    grad_x = grad_x if grad_total is None else grad_x + grad_total.double()
    columns = torch.stack([grad_weight, grad_bias]).float()
    grad_delta = grad_x.to(dtype) if dtype != total.dtype else total.new_empty(0)
    return grad_x.to(total.dtype), grad_delta, columns if has_parameters else torch.empty(0)


def bias_act_forward(product: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    return ACTIVATIONS[kind](product.float() + (0 if bias is None else bias.float())).to(product.dtype)


def bias_act_backward(grad_out: Tensor, product: Tensor, bias: Tensor | None, kind: str) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = (product.detach().double() + (0 if bias is None else bias.detach().double())).requires_grad_()
        (grad_product,) = torch.autograd.grad(ACTIVATIONS[kind](x), x, grad_out.double())
    grad_bias = torch.empty(0) if bias is None else grad_product.flatten(0, -2).sum(0).float()
    return grad_product.to(product.dtype), grad_bias


def qk_norm_rope_forward(
    product: Tensor, cos: Tensor | None, sin: Tensor | None, queries: int, keys: int, epsilon: float, norm: str | None
) -> tuple[Tensor, ...]:
    size = product.shape[-1] // (queries + 2 * keys)
    parts = product.double().split([queries * size, keys * size, keys * size], -1)
    query, key, value = (part.unflatten(-1, (-1, size)) for part in parts)
    if norm is not None:
        by = rms_norm if norm == "rms" else layer_norm
        query, key = (by(part, (size,), eps=epsilon) for part in (query, key))
    if cos is not None and sin is not None:
        query, key = (apply_rope(part, (cos.double(), sin.double())) for part in (query, key))
    return tuple(part.to(product.dtype).clone() for part in (query, key, value))


def qk_norm_rope_backward(
    grad_queries: Tensor, grad_keys: Tensor, grad_values: Tensor, product: Tensor,
    cos: Tensor | None, sin: Tensor | None, epsilon: float, norm: str | None,
) -> Tensor:
    with torch.enable_grad():
        x = product.detach().double().requires_grad_()
        result = qk_norm_rope_forward(x, cos, sin, grad_queries.shape[2], grad_keys.shape[2], epsilon, norm)
        grads = [part.double() for part in (grad_queries, grad_keys, grad_values)]
        (grad_product,) = torch.autograd.grad(result, x, grads)
    return grad_product.to(product.dtype)


def fused_linear(
    x: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Any = NO_NORM,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    result = normed(getattr(x, "mixed", x), norm) @ weight.float().T
    result = result if bias is None else result + bias.float()
    result = result if activation is None else ACTIVATIONS[activation](result)
    return (result if residual is None else result + residual.float()).to(weight.dtype)


def decode_attention(
    packed: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    *,
    norms: Any = (NO_NORM, NO_NORM),
    rope: tuple[Tensor, Tensor] | None = None,
    layer: str = "full",
    splits: int = 1,
) -> AttentionParts:
    """Row by row and head by head; the caches are written in place."""
    rows, groups, capacity, size = keys.shape
    vectors = packed.view(rows, -1, size)
    heads = vectors.shape[1] - 2 * groups
    out = torch.empty_like(packed[:, : heads * size])
    for row, position in enumerate(length.tolist()):
        query, key = (normed(vectors[row, part], norm) for part, norm in zip(_parts(heads, groups), norms))
        if rope is not None:
            by = rope[0][position], rope[1][position]
            query, key = apply_rope(query, by), apply_rope(key, by)
        slot = position % capacity
        keys[row, :, slot], values[row, :, slot] = key.to(keys), vectors[row, heads + groups :]
        begin = {"full": 0, "local": position - slot, "sliding": max(0, position + 1 - capacity)}[layer]
        visible = torch.arange(begin, position + 1) % capacity
        for head in range(heads):
            group = head * groups // heads
            score = keys[row, group, visible].float() @ query[head].to(keys.dtype).float() / math.sqrt(size)
            mixed = score.softmax(-1) @ values[row, group, visible].float()
            out[row, head * size : (head + 1) * size] = mixed.to(out.dtype)
    return AttentionParts(out)


def _parts(heads: int, groups: int) -> tuple[slice, slice]:
    return slice(heads), slice(heads, heads + groups)


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """Replaces the modules of the kernels by these functions, which serve the CPU as they would a GPU."""
    patch.setitem(ops.FUSED, "cpu", ops.FUSED["cuda"])
    norms = (fused_add_norm, add_norm_forward, add_norm_backward, Norm)
    every: dict[str, tuple[Any, ...]] = {
        "decode_attention": (decode_attention, AttentionParts), "linear": (fused_linear,), "add_norm": norms,
        "bias_act": (bias_act_forward, bias_act_backward),
        "qk_norm_rope": (qk_norm_rope_forward, qk_norm_rope_backward),
    }  # fmt: skip
    every["cpu.layers"] = (*every["add_norm"][1:3], *every["bias_act"], *every["qk_norm_rope"])
    for name, things in every.items():
        module = ModuleType(f"chainrule.kernels.{name}")
        for thing in things:
            setattr(module, thing.__name__, thing)
        patch.setitem(sys.modules, module.__name__, module)

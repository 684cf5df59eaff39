"""What kernels should say, written out in torch: a stand-in for them where there is no Triton, and their judge.

Shapes: B rows, H heads of queries, G heads of keys, C room, d numbers in a head.
"""

import math
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm

from chainrule.layers.blocks import ACTIVATIONS
from chainrule.layers.positions import apply_rope


class Norm(NamedTuple):
    kind: str | None
    epsilon: float
    gains: Tensor | None
    shift: Tensor | None


class Parts(NamedTuple):
    mixed: Tensor


NONE = Norm(None, 0.0, None, None)


def normed(x: Tensor, norm: Any) -> Tensor:
    gains, shift = (None if part is None else part.float() for part in (norm.gains, norm.shift))
    if norm.kind == "rms":
        return rms_norm(x.float(), x.shape[-1:], gains, norm.epsilon)
    return layer_norm(x.float(), x.shape[-1:], gains, shift, norm.epsilon) if norm.kind == "layer" else x.float()


def add_norm(x: Tensor, found: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    total = x if found is None else x + found
    return total, normed(total, norm).to(x.dtype)


def add_norm_to_learn(
    x: Tensor, found: Tensor, gains: Tensor | None, shift: Tensor | None, epsilon: float, centred: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, ...]:
    total = (x.float() + found.float()).to(x.dtype)
    rows = total.float().flatten(0, -2)
    mean = rows.mean(1) if centred else torch.zeros(len(rows))
    scale = ((rows - mean[:, None]).square().mean(1) + epsilon).rsqrt()
    norm = Norm("layer" if centred else "rms", epsilon, gains, shift)
    return total, normed(total, norm).to(dtype), scale, mean


def add_norm_back(
    to_total: Tensor | None, to_normed: Tensor, total: Tensor, scale: Tensor, mean: Tensor, gains: Tensor | None,
    centred: bool, dtype: torch.dtype, shared: bool,
) -> tuple[Tensor, ...]:
    """By autograd. What is given is how rows were scaled, and not ε."""
    with torch.enable_grad():
        x = total.detach().double().requires_grad_()
        gain = (torch.ones(x.shape[-1]) if gains is None else gains.detach()).double().requires_grad_()
        shift = torch.zeros(x.shape[-1], dtype=torch.float64, requires_grad=True)
        around = x - x.mean(-1, keepdim=True) if centred else x
        level = around.square().mean(-1, keepdim=True)
        epsilon = (scale.double().view(*x.shape[:-1], 1) ** -2 - level).detach()
        made = around * (level + epsilon).rsqrt() * gain + shift
        of_x, of_gains, of_shift = torch.autograd.grad(made, (x, gain, shift), to_normed.double())
    of_x = of_x if to_total is None else of_x + to_total.double()
    columns = torch.stack([of_gains, of_shift]).float()
    of_found = of_x.to(dtype) if dtype != total.dtype else total.new_empty(0)
    return of_x.to(total.dtype), of_found, columns if shared else torch.empty(0)


def bend(product: Tensor, bias: Tensor | None, kind: str) -> Tensor:
    return ACTIVATIONS[kind](product.float() + (0 if bias is None else bias.float())).to(product.dtype)


def bend_back(above: Tensor, product: Tensor, bias: Tensor | None, kind: str) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = (product.detach().double() + (0 if bias is None else bias.detach().double())).requires_grad_()
        (below,) = torch.autograd.grad(ACTIVATIONS[kind](x), x, above.double())
    return below.to(product.dtype), torch.empty(0) if bias is None else below.flatten(0, -2).sum(0).float()


def heads(
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


def heads_back(
    of_queries: Tensor, of_keys: Tensor, of_values: Tensor, product: Tensor, cos: Tensor | None, sin: Tensor | None,
    epsilon: float, norm: str | None,
) -> Tensor:
    with torch.enable_grad():
        x = product.detach().double().requires_grad_()
        made = heads(x, cos, sin, of_queries.shape[2], of_keys.shape[2], epsilon, norm)
        (below,) = torch.autograd.grad(made, x, [part.double() for part in (of_queries, of_keys, of_values)])
    return below.to(product.dtype)


def linear(
    x: Any,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Any = NONE,
    activation: str | None = None,
    added: Tensor | None = None,
) -> Tensor:
    made = normed(getattr(x, "mixed", x), norm) @ weight.float().T
    made = made if bias is None else made + bias.float()
    made = made if activation is None else ACTIVATIONS[activation](made)
    return (made if added is None else made + added.float()).to(weight.dtype)


def attend(
    projected: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    *,
    norms: Any = (NONE, NONE),
    rope: tuple[Tensor, Tensor] | None = None,
    window: int | None = None,
    splits: int = 1,
) -> Parts:
    """Row by row and head by head; the caches are written in their places."""
    rows, groups, _, size = keys.shape
    vectors = projected.view(rows, -1, size)
    heads = vectors.shape[1] - 2 * groups
    out = torch.empty_like(projected[:, : heads * size])
    for row, place in enumerate(length.tolist()):
        query, key = (normed(vectors[row, part], norm) for part, norm in zip(_parts(heads, groups), norms))
        if rope is not None:
            by = rope[0][place], rope[1][place]
            query, key = apply_rope(query, by), apply_rope(key, by)
        keys[row, :, place], values[row, :, place] = key.to(keys), vectors[row, heads + groups :]
        seen = slice(max(0, place + 1 - window) if window else 0, place + 1)
        for head in range(heads):
            group = head * groups // heads
            score = keys[row, group, seen].float() @ query[head].to(keys.dtype).float() / math.sqrt(size)
            mixed = score.softmax(-1) @ values[row, group, seen].float()
            out[row, head * size : (head + 1) * size] = mixed.to(out.dtype)
    return Parts(out)


def _parts(heads: int, groups: int) -> tuple[slice, slice]:
    return slice(heads), slice(heads, heads + groups)


def stand_in(patch: pytest.MonkeyPatch) -> None:
    """These in the place of Triton's."""
    norms = (add_norm, add_norm_to_learn, add_norm_back, Norm)
    every = {"decode_attention": (attend, Parts), "linear": (linear,), "add_norm": norms, "bias_act": (bend, bend_back),
             "qk_norm_rope": (heads, heads_back)}
    for name, found in every.items():
        module = ModuleType(f"chainrule.kernels.{name}")
        for thing in found:
            setattr(module, thing.__name__, thing)
        patch.setitem(sys.modules, module.__name__, module)

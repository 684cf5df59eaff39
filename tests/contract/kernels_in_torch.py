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

from chainrule.models.positions import turned
from chainrule.models.transformer import ACTIVATIONS


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
    turns: tuple[Tensor, Tensor] | None = None,
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
        if turns is not None:
            by = turns[0][place], turns[1][place]
            query, key = turned(query, by), turned(key, by)
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
    for name, found in {"attention": (attend, Parts), "linear": (linear,), "norm": (add_norm, Norm)}.items():
        module = ModuleType(f"chainrule.kernels.{name}")
        for thing in found:
            setattr(module, thing.__name__, thing)
        patch.setitem(sys.modules, module.__name__, module)

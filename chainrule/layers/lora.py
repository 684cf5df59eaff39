"""Low-rank adapters (Hu et al. 2022), put on a network from outside: a matrix stays as it is, and what is added learns.

    W' = W + (alpha / r) · B A        B: nothing at first;  A: by chance

The sum is written out, number by number, since every device rounds a product and a sum of two numbers alike, while a
matrix product adds up in an order of its own. So `merge` gives, wherever it is done, the weights that were used, to the
last bit. To the compiler the sum is one operation.

Shapes: O rows and I columns of a matrix, r rank, V tokens, N new ones, D width.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from chainrule.errors import UserError
from chainrule.kernels.ops import operator, register_backward

# What one network has learned, into another of the same body: weights by name and shape.
#
# A body is a network without its head (heads.py). Where its vocabulary has grown, what has a row for each token has new
# rows: the mean of the others and a little noise, so that no two new tokens are alike (Hewitt 2021).
#
# Shapes: V tokens before, N new tokens.

NOISE = 0.1    # deviation of a new row, as a share of that of the others


def body_of(model: Any) -> Any:
    """The network under a head; a model without one is its own body."""
    return getattr(model, "body", model)


@torch.no_grad()
def take(model: Any, base: Any, before: int) -> list[str]:
    """Gives the body of `model` the weights of that of `base`, which knew `before` tokens; the names of those that
    have new rows."""
    there, here = (dict(body_of(one).named_parameters()) for one in (base, model))
    if differing := sorted(there.keys() ^ here.keys()):
        side = "has none" if differing[0] in here else "alone has one"
        raise UserError(f"the weights are those of another body: of {differing[0]} the run to begin from {side}.")
    grown = []
    for name, weight in here.items():
        old = there[name]
        if old.shape == weight.shape:
            weight.copy_(old)
        elif len(old) == before < len(weight) and old.shape[1:] == weight.shape[1:]:
            weight.copy_(torch.cat([old, new_rows(old, len(weight) - before)]))
            grown.append(name)
        else:
            came, wanted = (" x ".join(map(str, part.shape)) for part in (old, weight))
            raise UserError(f"the weights are those of another body: {name} is {came} there, and {wanted} here.")
    return grown


def head_of(model: Any) -> dict[str, nn.Parameter]:
    """What a model has beside its body."""
    body = {id(parameter) for parameter in body_of(model).parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in body}


@torch.no_grad()
def take_head(model: Any, base: Any) -> bool:
    """Gives the head of `model` the weights of that of `base`, where these are of the same shapes; whether so."""
    there, here = head_of(base), head_of(model)
    if {name: weight.shape for name, weight in there.items()} != {name: weight.shape for name, weight in here.items()}:
        return False
    for name, weight in here.items():
        weight.copy_(there[name])
    return bool(here)


def new_rows(old: Tensor, more: int) -> Tensor:
    """(V, …) -> (N, …)"""
    noise = torch.randn(more, *old.shape[1:]).to(old)
    return old.mean(0) + NOISE * old.std(0, correction=0) * noise


PUT_ON = re.compile(r"(^|.*\.)parametrizations\.(\w+)\.(?:0\.)?(\w+)")    # where, of which weight, what


def _low_rank(weight: Tensor, up: Tensor, down: Tensor, scale: float) -> Tensor:
    merged = weight.clone(memory_format=torch.contiguous_format)
    for column, row in zip((scale * up).unbind(1), down.unbind(0)):
        merged += column[:, None] * row
    return merged


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, up, down, ctx.scale = inputs
    ctx.save_for_backward(up, down)


def _backward(ctx: Any, gradient: Tensor) -> Any:
    up, down = ctx.saved_tensors
    return None, ctx.scale * (gradient @ down.T), ctx.scale * (up.T @ gradient), None


low_rank: Callable[..., Tensor] = operator(                # (O, I), B (O, r), A (r, I) -> (O, I)
    "low_rank(Tensor weight, Tensor up, Tensor down, float scale) -> Tensor",
    _low_rank, lambda weight, *_: torch.empty_like(weight),
)
register_backward("low_rank", _backward, _setup)


class LowRank(nn.Module):
    def __init__(self, weight: Tensor, rank: int, scale: float):
        super().__init__()
        rows, columns = weight.shape
        self.scale = scale
        self.up = nn.Parameter(torch.zeros(rows, rank, device=weight.device))                                  # B
        self.down = nn.Parameter((torch.randn(rank, columns) / math.sqrt(columns)).to(weight.device))          # A

    def forward(self, weight: Tensor) -> Tensor:
        return low_rank(weight, self.up, self.down, self.scale)


class NewRows(nn.Module):
    """The rows of new tokens learn where those of the others stay."""

    def __init__(self, weight: Tensor, before: int):
        super().__init__()
        self.before, self.rows = before, nn.Parameter(weight[before:].detach().clone())                        # (N, D)

    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([weight[: self.before], self.rows])


def put_on(model: nn.Module, name: str, what: nn.Module) -> None:
    """From now on the weight of that name stays, and `what` says what it is used as."""
    module, _, attribute = name.rpartition(".")
    model.get_parameter(name).requires_grad_(False)
    parametrize.register_parametrization(model.get_submodule(module), attribute, what)


def plain_name(name: str) -> str:
    """Of a weight as it would be, had nothing been put on it; behind a slash, which part of that it is."""
    return PUT_ON.sub(r"\1\2/\3", name)


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """What `state_dict` would be, had nothing been put on and were the weights those that are used."""
    names = {name: plain_name(name).partition("/")[0] for name in model.state_dict()}
    return {plain: tensor if name == plain else _used(model, plain)
            for (name, plain), tensor in zip(names.items(), model.state_dict().values())}


def _used(model: nn.Module, name: str) -> Tensor:
    module, _, attribute = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(module), attribute)
    return tensor.detach()


def learned(model: nn.Module) -> dict[str, Tensor]:
    """All that is not as it was: adapters, new rows, the head."""
    every = ((plain_name(name), parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    return {name: parameter.detach() for name, parameter in every}


@torch.no_grad()
def merge(model: nn.Module, adapter: Mapping[str, Tensor], scale: float) -> None:
    """What `learned` gave, into a model that has the weights it was learned upon."""
    weights = dict(model.named_parameters())
    body = {id(weight) for weight in body_of(model).parameters()}
    if missing := [name for name, weight in weights.items() if id(weight) not in body and name not in adapter]:
        raise KeyError(missing[0])
    for name, value in adapter.items():
        name, _, part = name.partition("/")
        weight = weights[name]
        if part == "up":
            weight.copy_(low_rank(weight, value, adapter[f"{name}/down"], scale))
        elif part == "rows":
            weight[len(weight) - len(value) :] = value
        elif part != "down":
            weight.copy_(value)

"""What one network has learned, into another of the same body: weights by name and shape.

A body is a network without its head (heads.py). Where its vocabulary has grown, what has a row for each token has new
rows: the mean of the others and a little noise, so that no two new tokens are alike (Hewitt 2021).

Shapes: V tokens before, N new tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn

from chainrule.errors import UserError

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

"""How far back learning reaches: the gradient of the last target's nats, by how many tokens back it arrives.

It vanishes or explodes along a recurrent network, and takes short cuts through attention. The model is not told: the
module that turns tokens into vectors is found by watching, and the gradient is that of its vectors.

Shapes: B rows, T tokens, D width.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from chainrule.model import Batch, Model
from chainrule.train.precision import Precision


@torch.enable_grad()
def gradients_by_time(model: Model, batch: Batch, precision: Precision) -> list[float]:
    """Mean over the rows of the length of the gradient: of the last token's vector, of the one before it, …"""
    found: list[Tensor] = []

    def watch(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if not found and inputs and _turns_tokens_into_vectors(inputs[0], output):
            found.append(output)

    rows, length = batch.tokens.shape
    hooks = [module.register_forward_hook(watch) for module in model.modules()]
    devices = [batch.tokens.device] if batch.tokens.is_cuda else []
    try:
        with torch.random.fork_rng(devices), precision():
            last = torch.full((rows,), length - 1, device=batch.tokens.device)
            nats, _, _ = model.nats(replace(batch, skips=last))
        (gradient,) = torch.autograd.grad(nats, found[0])                      # (B, …T, D)
    finally:
        for hook in hooks:
            hook.remove()
    lengths: list[float] = gradient[:, -length:].float().norm(dim=-1).mean(0).flip(0).tolist()
    return lengths


def _turns_tokens_into_vectors(tokens: Any, vectors: Any) -> bool:
    both = isinstance(tokens, Tensor) and isinstance(vectors, Tensor)
    return both and not tokens.is_floating_point() and vectors.requires_grad and vectors.shape[:-1] == tokens.shape

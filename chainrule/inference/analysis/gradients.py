"""Vanishing and exploding gradients: the norm of the last target's gradient at each earlier token, ∂L_T/∂h_t.

    ∂L_T/∂h_t = Wᵀ diag σ'(a_{t+1}) ∂L_T/∂h_{t+1} = … = (Π_{k=t+1…T} Wᵀ diag σ'(a_k)) ∂L_T/∂h_T    (Elman network)

It vanishes or explodes along a recurrent network, and reaches distant tokens directly through attention. No model needs
code for this: forward hooks find the module that embeds the tokens, and taps find the hidden vectors.

Shapes: B rows, T tokens, D width.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.model import Batch, Model, taps, watch

TAPS = ("hidden", "moment")
"""Taps of hidden vectors, of whole texts or of one token at a time."""

CELL = "cell_moment"
"""The tap of an LSTM's cell, one token at a time."""


@torch.enable_grad()
def gradients_by_time(
    model: Model, batch: Batch, precision: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> list[float]:
    """The norm of the gradient, averaged over the rows, at the last token's embedding, at the one before it, …"""
    with _embedded(model) as found:
        nats = _last_loss(model, batch, precision)
        (gradient,) = torch.autograd.grad(nats, found[0])                      # (B, …T, D)
    return _norms(gradient[:, -batch.tokens.shape[1] :])


@torch.enable_grad()
def gradients_by_layer(model: Model, batch: Batch) -> list[list[float]]:
    """As by time: at the embeddings, then at the hidden vectors of each layer, the lowest first."""
    names = _names(model, TAPS)
    with _embedded(model) as found, watch(model, *names), _tapped(model, names) as hidden:
        nats = _last_loss(model, batch, nullcontext)
        places = [found[:1], *hidden.values()]
        arrived = [_gradients(nats, place) for place in places]
    return [_norms(torch.cat(parts, 1)[:, -batch.tokens.shape[1] :]) for parts in arrived if parts]


@torch.enable_grad()
def gradients_of_cells(model: Model, batch: Batch) -> list[list[float]]:
    """As by time, at the cells of an LSTM's layers, ∂L_T/∂c_t; a model without cells has none."""
    names = _names(model, (CELL,))
    with watch(model, *_names(model, TAPS), *names), _tapped(model, names) as cells:
        nats = _last_loss(model, batch, nullcontext)
        arrived = [_gradients(nats, place) for place in cells.values()]
    return [_norms(torch.stack(parts, 1)[:, -batch.tokens.shape[1] :]) for parts in arrived if parts]


def _names(model: Model, last: Sequence[str]) -> list[str]:
    """The paths of taps by the last part of their names."""
    return [name for name in taps(model) if name.rpartition(".")[2] in last]


def factor(norms: Sequence[float]) -> float | None:
    """The factor by which the gradient changes with each token further back: an exponential fitted to norms above 0."""
    steps = np.flatnonzero(np.array(norms) > 0)
    if len(steps) < 2:
        return None
    return float(np.exp(np.polyfit(steps, np.log(np.array(norms)[steps]), 1)[0]))


@contextmanager
def _embedded(model: Model) -> Iterator[list[Tensor]]:
    """The embeddings of the tokens that the model reads, after its forward pass."""
    found: list[Tensor] = []

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not found and inputs and _embeds_tokens(inputs[0], output):
            found.append(output)

    with _hooked(model.modules(), hook):
        yield found


@contextmanager
def _tapped(model: Model, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """The tensors that pass through the taps, as part of the autograd graph."""
    every = taps(model)
    passed: dict[str, list[Tensor]] = {name: [] for name in names}
    place: dict[nn.Module, str] = {every[name]: name for name in names}

    def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        passed[place[module]].append(output)

    with _hooked([every[name] for name in names], hook):
        yield passed


@contextmanager
def _hooked(modules: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _embeds_tokens(tokens: Any, vectors: Any) -> bool:
    both = isinstance(tokens, Tensor) and isinstance(vectors, Tensor)
    return both and not tokens.is_floating_point() and vectors.requires_grad and vectors.shape[:-1] == tokens.shape


def _last_loss(model: Model, batch: Batch, precision: Callable[[], AbstractContextManager[Any]]) -> Tensor:
    rows, length = batch.tokens.shape[:2]
    devices = [batch.tokens.device] if batch.tokens.is_cuda else []
    with torch.random.fork_rng(devices), precision():
        last = torch.full((rows,), length - 1, device=batch.tokens.device)
        nats, _, _ = model.loss(replace(batch, context_only=last))
    return nats


def _gradients(nats: Tensor, places: Sequence[Tensor]) -> list[Tensor]:
    """Without those of copies, which the loss does not depend on."""
    found = torch.autograd.grad(nats, places, retain_graph=True, allow_unused=True) if places else ()
    return [gradient for gradient in found if gradient is not None]


def _norms(gradient: Tensor) -> list[float]:
    """(B, T, D) -> T numbers, the last token first."""
    norms: list[float] = gradient.double().norm(dim=-1).mean(0).flip(0).tolist()    # in float32, squares underflow
    return norms

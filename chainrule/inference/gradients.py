"""How far back learning reaches: the gradient of the last target's nats L_T, by the token at which it arrives.

    ∂L_T/∂h_t = Wᵀ diag σ'(a_{t+1}) ∂L_T/∂h_{t+1} = … = (Π_{k=t+1…T} Wᵀ diag σ'(a_k)) ∂L_T/∂h_T    (Elman network)

It vanishes or explodes along a recurrent network, and takes short cuts through attention. The model is not told: the
module that turns tokens into vectors is found by watching, and the hidden vectors by their taps.

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
"""Where hidden vectors pass, whole texts or one token at a time."""


@torch.enable_grad()
def gradients_by_time(
    model: Model, batch: Batch, precision: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> list[float]:
    """Mean over the rows of the length of the gradient: of the last token's vector, of the one before it, …"""
    with _read(model) as found:
        nats = _last_nats(model, batch, precision)
        (gradient,) = torch.autograd.grad(nats, found[0])                      # (B, …T, D)
    return _lengths(gradient[:, -batch.tokens.shape[1] :])


@torch.enable_grad()
def gradients_by_layer(model: Model, batch: Batch) -> list[list[float]]:
    """As by time, of the vectors that are read, then of the hidden vectors of each layer, the lowest first."""
    names = [name for name in taps(model) if name.rpartition(".")[2] in TAPS]
    with _read(model) as found, watch(model, *names), _passing(model, names) as hidden:
        nats = _last_nats(model, batch, nullcontext)
        places = [found[:1], *hidden.values()]
        arrived = [_gradients(nats, place) for place in places]
    return [_lengths(torch.cat(parts, 1)[:, -batch.tokens.shape[1] :]) for parts in arrived if parts]


def factor(lengths: Sequence[float]) -> float | None:
    """What multiplies a gradient with each token that it goes back: an exponential, fitted to all that is not 0."""
    steps = np.flatnonzero(np.array(lengths) > 0)
    if len(steps) < 2:
        return None
    return float(np.exp(np.polyfit(steps, np.log(np.array(lengths)[steps]), 1)[0]))


@contextmanager
def _read(model: Model) -> Iterator[list[Tensor]]:
    """The vectors of the tokens that are read, once they have been made."""
    found: list[Tensor] = []

    def hear(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not found and inputs and _turns_tokens_into_vectors(inputs[0], output):
            found.append(output)

    with _heard(model.modules(), hear):
        yield found


@contextmanager
def _passing(model: Model, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """What passes through taps, still on the way along which gradients come back."""
    every = taps(model)
    passed: dict[str, list[Tensor]] = {name: [] for name in names}
    place: dict[nn.Module, str] = {every[name]: name for name in names}

    def hear(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        passed[place[module]].append(output)

    with _heard([every[name] for name in names], hear):
        yield passed


@contextmanager
def _heard(modules: Iterable[nn.Module], hear: Callable[..., None]) -> Iterator[None]:
    hooks = [module.register_forward_hook(hear) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _turns_tokens_into_vectors(tokens: Any, vectors: Any) -> bool:
    both = isinstance(tokens, Tensor) and isinstance(vectors, Tensor)
    return both and not tokens.is_floating_point() and vectors.requires_grad and vectors.shape[:-1] == tokens.shape


def _last_nats(model: Model, batch: Batch, precision: Callable[[], AbstractContextManager[Any]]) -> Tensor:
    rows, length = batch.tokens.shape
    devices = [batch.tokens.device] if batch.tokens.is_cuda else []
    with torch.random.fork_rng(devices), precision():
        last = torch.full((rows,), length - 1, device=batch.tokens.device)
        nats, _, _ = model.loss(replace(batch, context_only=last))
    return nats


def _gradients(nats: Tensor, places: Sequence[Tensor]) -> list[Tensor]:
    """None of a copy, which is not on the way to the nats."""
    found = torch.autograd.grad(nats, places, retain_graph=True, allow_unused=True) if places else ()
    return [gradient for gradient in found if gradient is not None]


def _lengths(gradient: Tensor) -> list[float]:
    """(B, T, D) -> T, the last first."""
    lengths: list[float] = gradient.double().norm(dim=-1).mean(0).flip(0).tolist()    # squares of little are less
    return lengths

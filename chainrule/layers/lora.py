"""LoRA: low-rank adapters (Hu et al. 2022), and fine-tuning a body from the weights of another run.

    W' = W + (alpha / r) · B A        W is frozen; B starts at zero, A is random

The product B A is added one rank at a time, elementwise, because all devices round a product and a sum of two numbers
alike, while a matrix product sums in an order of its own. So `merge_lora` gives, on every device, exactly the weights
that were used in training, to the last bit. The compiler sees the sum as one operator. On a CPU a merged matrix is kept
until its adapter changes, and the gradients of A and B come from the activations, without that of W':

    ∇B = (alpha / r) · gᵀ (x Aᵀ)        ∇A = (alpha / r) · (g B)ᵀ x        where y = x W'ᵀ and g = ∇y

Shapes: O rows and I columns of a matrix, r rank, V tokens before, N new tokens or inputs, D width.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils import parametrize

from chainrule.errors import UserError
from chainrule.kernels.ops import operator, register_backward
from chainrule.layers.parameters import unparametrized
from chainrule.model import Model

NOISE = 0.1    # standard deviation of the row of a new token, relative to that of the other rows


def body_of(model: nn.Module) -> Model:
    """The network under a head (models/heads.py); a model without a head is its own body."""
    return cast(Model, getattr(model, "body", model))


def head_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not in the body."""
    body = {id(parameter) for parameter in body_of(model).parameters()}
    return {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in body}


# Weights of another run

@torch.no_grad()
def load_body(model: nn.Module, base: nn.Module, before: int) -> list[str]:
    """Copies the weights of the body of `base`, whose vocabulary had `before` tokens, into the body of `model`.

    Returns the names of the parameters that have rows for new tokens: the mean of the other rows plus a little noise,
    so that no two new tokens are equal (Hewitt 2021).
    """
    there, here = (dict(body_of(one).named_parameters()) for one in (base, model))
    if differing := sorted(there.keys() ^ here.keys()):
        side = "lacks" if differing[0] in here else "alone has"
        raise UserError(f"the weights are those of another body: the run to start from {side} {differing[0]}.")
    grown = []
    for name, weight in here.items():
        old = there[name]
        if old.shape == weight.shape:
            weight.copy_(old)
        elif len(old) == before < len(weight) and old.shape[1:] == weight.shape[1:]:
            weight.copy_(torch.cat([old, new_token_rows(old, len(weight) - before)]))
            grown.append(name)
        else:
            got, expected = (" x ".join(map(str, part.shape)) for part in (old, weight))
            raise UserError(f"the weights are those of another body: {name} is {got} there, and {expected} here.")
    return grown


@torch.no_grad()
def load_head(model: nn.Module, base: nn.Module) -> bool:
    """Copies the weights of the head of `base` into that of `model`, if their shapes agree; whether they did."""
    there, here = head_parameters(base), head_parameters(model)
    if {name: weight.shape for name, weight in there.items()} != {name: weight.shape for name, weight in here.items()}:
        return False
    for name, weight in here.items():
        weight.copy_(there[name])
    return bool(here)


def new_token_rows(old: Tensor, more: int) -> Tensor:
    """(V, …) -> (N, …)"""
    noise = torch.randn(more, *old.shape[1:]).to(old)
    return old.mean(0) + NOISE * old.std(0, correction=0) * noise


# Adapters

def _add_low_rank(weight: Tensor, up: Tensor, down: Tensor, scale: float) -> Tensor:
    merged = weight.clone(memory_format=torch.contiguous_format)
    for column, row in zip((scale * up).unbind(-1), down.unbind(-2)):
        merged += column[..., None] * row[..., None, :]
    return merged


def _setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, up, down, ctx.scale = inputs
    ctx.save_for_backward(up, down)


def _backward(ctx: Any, grad_out: Tensor) -> Any:
    up, down = ctx.saved_tensors
    return None, ctx.scale * (grad_out @ down.mT), ctx.scale * (up.mT @ grad_out), None


add_low_rank: Callable[..., Tensor] = operator(                # (…, O, I), B (…, O, r), A (…, r, I) -> (…, O, I)
    "add_low_rank(Tensor weight, Tensor up, Tensor down, float scale) -> Tensor",
    _add_low_rank, lambda weight, *_: torch.empty_like(weight),
)
register_backward("add_low_rank", _backward, _setup_context)


def _lora_linear(x: Tensor, merged: Tensor, bias: Tensor | None, up: Tensor, down: Tensor, scale: float) -> Tensor:
    return linear(x, merged, bias)


def _linear_setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
    x, merged, _, up, down, ctx.scale = inputs
    ctx.save_for_backward(x, merged, up, down)


def _linear_backward(ctx: Any, grad_out: Tensor) -> Any:
    x, merged, up, down = ctx.saved_tensors
    grad_x = grad_out @ merged if ctx.needs_input_grad[0] else None
    grad_out, x = grad_out.flatten(0, -2), x.flatten(0, -2)                        # (N, O), (N, I)
    grad_bias = grad_out.sum(0) if ctx.needs_input_grad[2] else None
    grad_up, grad_down = grad_out.T @ (x @ down.T), (grad_out @ up).T @ x
    return grad_x, None, grad_bias, ctx.scale * grad_up, ctx.scale * grad_down, None


lora_linear: Callable[..., Tensor] = operator(                 # (…, I), W' (O, I) without a gradient, … -> (…, O)
    "lora_linear(Tensor x, Tensor merged, Tensor? bias, Tensor up, Tensor down, float scale) -> Tensor",
    _lora_linear, lambda x, merged, *_: x.new_empty(*x.shape[:-1], len(merged)),
)
register_backward("lora_linear", _linear_backward, _linear_setup_context)


class LoRA(nn.Module):
    """A parametrization: the weight plus scale · B A; each expert has a B and an A of its own."""

    def __init__(self, weight: Tensor, rank: int, scale: float):
        super().__init__()
        *experts, rows, columns = weight.shape
        self.scale = scale
        self.up = nn.Parameter(torch.zeros(*experts, rows, rank, device=weight.device))                # B
        self.down = nn.Parameter((torch.randn(*experts, rank, columns) / math.sqrt(columns)).to(weight.device))    # A

    def forward(self, weight: Tensor) -> Tensor:
        return add_low_rank(weight, self.up, self.down, self.scale)


_MERGED: WeakKeyDictionary[LoRA, tuple[Any, Tensor]] = WeakKeyDictionary()    # and of which tensors it was made


def merged_once(lora: LoRA, weight: Tensor) -> Tensor:
    """W' without a gradient, computed once for each state of the adapter."""
    now = [(part.data_ptr(), part._version) for part in (weight, lora.up, lora.down)]
    if lora not in _MERGED or _MERGED[lora][0] != now:
        with torch.inference_mode(False), torch.no_grad():
            _MERGED[lora] = now, add_low_rank(weight, lora.up, lora.down, lora.scale)
    return _MERGED[lora][1]


def _adapted_forward(module: Any, x: Tensor) -> Tensor:
    """Of a linear layer with adapters: the same output; the backward pass does not compute the gradient of W'."""
    weight, lora = module.parametrizations.weight.original, module.parametrizations.weight[0]
    eager = x.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")
    if not eager or x.dtype != weight.dtype:
        return linear(x, module.weight, module.bias)
    merged = merged_once(lora, weight)
    if not torch.is_grad_enabled():
        return linear(x, merged, module.bias)
    return lora_linear(x, merged, module.bias, lora.up, lora.down, lora.scale)


class NewTokenRows(nn.Module):
    """A parametrization: the rows of new tokens are trained while the others stay frozen."""

    def __init__(self, weight: Tensor, before: int):
        super().__init__()
        self.before, self.rows = before, nn.Parameter(weight[before:].detach().clone())                        # (N, D)

    def forward(self, weight: Tensor) -> Tensor:
        return torch.cat([weight[: self.before], self.rows])


def add_parametrization(model: nn.Module, name: str, parametrization: nn.Module) -> None:
    """Freezes the parameter of that name; from now on the model uses `parametrization` of it."""
    module, _, attribute = name.rpartition(".")
    model.get_parameter(name).requires_grad_(False)
    layer = model.get_submodule(module)
    computes_linear = type(layer).forward is nn.Linear.forward
    parametrize.register_parametrization(layer, attribute, parametrization)
    if computes_linear and isinstance(parametrization, LoRA):
        type(layer).forward = _adapted_forward    # torch makes a class for each layer


def merged_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The `state_dict` that a model without parametrizations would have, with the weights that are in use."""
    names = {name: unparametrized(name).partition("/")[0] for name in model.state_dict()}
    return {plain: tensor if name == plain else _weight_in_use(model, plain)
            for (name, plain), tensor in zip(names.items(), model.state_dict().values())}


def _weight_in_use(model: nn.Module, name: str) -> Tensor:
    module, _, attribute = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(module), attribute)
    return tensor.detach()


def trainable_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All that training changes: adapters, rows of new tokens, the head."""
    every = ((unparametrized(name), parameter) for name, parameter in model.named_parameters())
    return {name: parameter.detach() for name, parameter in every if parameter.requires_grad}


@torch.no_grad()
def merge_lora(model: nn.Module, adapter: Mapping[str, Tensor], scale: float) -> None:
    """Adds what `trainable_tensors` returned to a model with the weights from which it was trained."""
    weights = dict(model.named_parameters())
    if missing := [name for name in head_parameters(model) if name not in adapter]:
        raise KeyError(missing[0])
    for name, value in adapter.items():
        name, _, part = name.partition("/")
        weight = weights[name]
        if part == "up":
            weight.copy_(add_low_rank(weight, value, adapter[f"{name}/down"], scale))
        elif part == "rows":
            weight[len(weight) - len(value) :] = value
        elif part != "down":
            weight.copy_(value)

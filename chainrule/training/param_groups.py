"""Parameter groups: which optimizer, learning rate and weight decay each parameter has, and which are frozen.

    lr of a parameter = lr · body_lr · layer_decay ^ (layers between it and the top of the body);  of the head: lr

One optimizer serves all, or Muon serves the matrices of hidden layers and AdamW the rest; only matrices have weight
decay. The depth of a parameter is 0 for embeddings, then the number of its layer (layers/parameters.py).
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from chainrule.errors import UserError, did_you_mean
from chainrule.layers.lora import body_of
from chainrule.layers.parameters import group_parameters, layer_count, parameter_depths
from chainrule.model import Model
from chainrule.recipe import Gradient
from chainrule.training.optim import SGD, AdamW, Muon, Optimizer, packed_rows

ALL = "all"

Weights = list[nn.Parameter]

DIGITS = 9    # of a number of layers, at most


class Optimizers:
    """The optimizers of all parameters as one, with names for their state so that it can be saved."""

    def __init__(self, model: nn.Module, settings: Gradient):
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        factors, sorts, packed = lr_factors(model, settings), group_parameters(model), packed_rows(model)
        self.every: list[Optimizer] = []
        self.factor = 1.0                                  # of the learning rates, now
        for factor in sorted({1.0, *factors.values()}, reverse=True):
            group = ([weight for name, weight in some if factors.get(name, 1.0) == factor] for some in sorts)
            hidden, output, rest = group
            self.every += make_optimizers(hidden, output, rest, settings, factor, packed)

    def set_lr(self, factor: float) -> None:
        """Each learning rate becomes `factor` times its maximum."""
        self.factor = factor
        for optimizer in self.every:
            optimizer.set_lr(factor)

    def step(self) -> None:
        for optimizer in self.every:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.every:
            for weight in optimizer.weights:
                weight.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Their whole state: parameter's name/name of the state -> tensor."""
        return {
            f"{self.names[weight]}/{name}": value
            for optimizer in self.every
            for weight, state in optimizer.state.items()
            for name, value in state.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on with the state that `tensors` returned."""
        by_weight: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            weight_name, _, name = key.rpartition("/")
            by_weight.setdefault(weight_name, {})[name] = tensor
        for optimizer in self.every:
            optimizer.state = {
                weight: {name: value.to(weight.device, copy=True) for name, value in by_weight[weight_name].items()}
                for weight in optimizer.weights if (weight_name := self.names[weight]) in by_weight
            }


def make_optimizers(
    hidden: Weights, output: Weights, rest: Weights, settings: Gradient, factor: float, packed: dict[Tensor, list[int]]
) -> list[Optimizer]:
    """Those of the parameters whose learning rate is `factor` times train.lr."""
    decay = _or(settings.weight_decay, 0.0 if settings.optimizer == "sgd" else 0.1)
    optimizers: list[Optimizer] = []
    if settings.optimizer == "muon" and hidden:
        optimizers.append(Muon(hidden, factor * settings.lr, _or(settings.momentum, 0.95), decay, packed))
        hidden = []
    lr = factor * _or(settings.adamw_lr, settings.lr)
    for weights, own_decay in ((hidden + output, decay), (rest, 0.0)):
        optimizers += [_sgd_or_adamw(weights, lr, settings, own_decay)] if weights else []
    return optimizers


def _sgd_or_adamw(weights: Weights, lr: float, settings: Gradient, decay: float) -> Optimizer:
    if settings.optimizer == "sgd":
        return SGD(weights, lr, _or(settings.momentum, 0.0), decay)
    return AdamW(weights, lr, settings.betas, decay)


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given


def lr_factors(model: nn.Module, settings: Gradient) -> dict[str, float]:
    """By name, what the learning rate of a parameter is multiplied by; empty where all have the same rate."""
    if settings.body_lr is None and settings.layer_decay == 1:
        return {}
    body = body_of(model)
    prefix, body_lr, top = "" if body is model else "body.", settings.body_lr or 1.0, 1 + layer_count(body)
    return {f"{prefix}{name}": body_lr * settings.layer_decay ** (top - depth)
            for name, depth in parameter_depths(body).items()}


def freeze(body: Model, wanted: Sequence[str]) -> None:
    """The parameters that `train.freeze` names are not trained."""
    for word in wanted:
        for name in _named(word, body):
            body.get_parameter(name).requires_grad_(False)


def _named(word: str, body: Model) -> list[str]:
    names = [name for name, _ in body.named_parameters()]
    if word == ALL:
        return names
    if word.isdecimal():
        layers = layer_count(body)
        if len(word) > DIGITS or int(word) > layers:
            raise UserError(f"train.freeze={word}: the body has {layers} layers.")
        return [name for name, depth in parameter_depths(body).items() if depth <= int(word)]
    found = [name for name in names if f"{name}.".startswith(f"{word}.")]
    if not found:
        parts = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
        tops = sorted({name.partition(".")[0] for name in names})
        near = did_you_mean(word, sorted(parts)) or f" It has {', '.join(tops)}."
        raise UserError(f"train.freeze={word} is not the beginning of any parameter's name in the body.{near}")
    return found

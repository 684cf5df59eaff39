"""Which rule changes which weights: one for all, or Muon for the matrices of hidden layers and AdamW for the rest."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from chainrule.errors import UserError, did_you_mean
from chainrule.layers.lora import body_of
from chainrule.layers.parameters import group_parameters, layer_count, parameter_depths
from chainrule.model import Model
from chainrule.recipe import Gradient
from chainrule.training.optim import SGD, AdamW, Muon, Rule, maps_of

# The parts of a network, bottom to top: embeddings, layers, what is above them, a head. Each has a rate of its own.
#
#     rate of a weight = lr · body_lr · layer_decay ^ (how far it is below the top of the body);  of the head: lr
#
# Parts that are frozen stay as they are. Where there are several stacks of layers, each is counted from its own bottom.

ALL = "all"


def rates(model: nn.Module, settings: Gradient) -> dict[str, float]:
    """By name, the factor of the learning rate of each parameter; empty, where all have the same."""
    if settings.body_lr is None and settings.layer_decay == 1:
        return {}
    body = body_of(model)
    prefix, share, top = "" if body is model else "body.", settings.body_lr or 1.0, 1 + layer_count(body)
    return {f"{prefix}{name}": share * settings.layer_decay ** (top - depth)
            for name, depth in parameter_depths(body).items()}


def freeze(body: Model, wanted: Sequence[str]) -> None:
    """Parameters that `train.freeze` names are not trained."""
    for word in wanted:
        for name in _named(word, body):
            body.get_parameter(name).requires_grad_(False)


def _named(word: str, body: Model) -> list[str]:
    names = [name for name, _ in body.named_parameters()]
    if word == ALL:
        return names
    if word.isdecimal():
        layers = layer_count(body)
        if int(word) > layers:
            raise UserError(f"train.freeze={word}: the body has {layers} layers.")
        return [name for name, depth in parameter_depths(body).items() if depth <= int(word)]
    found = [name for name in names if f"{name}.".startswith(f"{word}.")]
    if not found:
        parts = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
        tops = sorted({name.partition(".")[0] for name in names})
        near = did_you_mean(word, sorted(parts)) or f" It has {', '.join(tops)}."
        raise UserError(f"train.freeze={word} is not the beginning of the name of any weight of the body.{near}")
    return found


Weights = list[nn.Parameter]


class Optimizers:
    """The rules of all weights as one, with names for what they remember so that it can be saved."""

    def __init__(self, model: nn.Module, settings: Gradient):
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        shares, sorts, maps = rates(model, settings), group_parameters(model), maps_of(model)
        self.rules: list[Rule] = []
        self.factor = 1.0                                  # of the learning rates, now
        for share in sorted({1.0, *shares.values()}, reverse=True):
            alike = ([weight for name, weight in some if shares.get(name, 1.0) == share] for some in sorts)
            hidden, output, rest = alike
            self.rules += make_rules(hidden, output, rest, settings, share, maps)

    def set_rate(self, factor: float) -> None:
        """Each learning rate at `factor` times its highest."""
        self.factor = factor
        for rule in self.rules:
            rule.set_rate(factor)

    def step(self) -> None:
        for rule in self.rules:
            rule.step()

    def forget_gradients(self) -> None:
        for rule in self.rules:
            for weight in rule.weights:
                weight.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Everything they remember: weight's name/what it is -> tensor."""
        return {
            f"{self.names[weight]}/{what}": value
            for rule in self.rules
            for weight, known in rule.remembered.items()
            for what, value in known.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with what `tensors` gave."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, what = key.rpartition("/")
            by_name.setdefault(name, {})[what] = tensor
        for rule in self.rules:
            rule.remembered = {
                weight: {what: value.to(weight.device, copy=True) for what, value in by_name[name].items()}
                for weight in rule.weights if (name := self.names[weight]) in by_name
            }


def make_rules(
    hidden: Weights, output: Weights, rest: Weights, settings: Gradient, share: float, maps: dict[Tensor, list[int]]
) -> list[Rule]:
    """Those of weights that learn at `share` of the learning rate."""
    decay = _or(settings.weight_decay, 0.0 if settings.optimizer == "sgd" else 0.1)
    rules: list[Rule] = []
    if settings.optimizer == "muon" and hidden:
        rules.append(Muon(hidden, share * settings.lr, _or(settings.momentum, 0.95), decay, maps))
        hidden = []
    lr = share * _or(settings.adamw_lr, settings.lr)
    for weights, lost in ((hidden + output, decay), (rest, 0.0)):
        rules += [_plain(weights, lr, settings, lost)] if weights else []
    return rules


def _plain(weights: Weights, lr: float, settings: Gradient, decay: float) -> Rule:
    if settings.optimizer == "sgd":
        return SGD(weights, lr, _or(settings.momentum, 0.0), decay)
    return AdamW(weights, lr, settings.betas, decay)


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given

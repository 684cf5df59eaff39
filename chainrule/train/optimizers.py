"""Which rule changes which weights: one for all, or Muon for the matrices of hidden layers and AdamW for the rest."""

from collections.abc import Mapping

from torch import Tensor, nn

from chainrule.models.weights import sort_parameters
from chainrule.recipe import Gradient
from chainrule.train.muon import Muon, maps_of
from chainrule.train.parts import rates
from chainrule.train.rules import SGD, AdamW, Rule

Weights = list[nn.Parameter]


class Optimizers:
    """The rules of all weights as one, with names for what they remember so that it can be saved."""

    def __init__(self, model: nn.Module, settings: Gradient):
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        shares, sorts, maps = rates(model, settings), sort_parameters(model), maps_of(model)
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
    lr = share * _or(settings.rest_lr, settings.lr)
    for weights, lost in ((hidden + output, decay), (rest, 0.0)):
        rules += [_plain(weights, lr, settings, lost)] if weights else []
    return rules


def _plain(weights: Weights, lr: float, settings: Gradient, decay: float) -> Rule:
    if settings.optimizer == "sgd":
        return SGD(weights, lr, _or(settings.momentum, 0.0), decay)
    return AdamW(weights, lr, settings.betas, decay)


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given

"""The parts of a network, bottom to top: embeddings, layers, what is above them, a head. Each has a rate of its own.

    rate of a weight = lr · body_lr · layer_decay ^ (how far it is below the top of the body);  of the head: lr

Parts that are frozen stay as they are. Where there are several stacks of layers, each is counted from its own bottom.
"""

import re
from collections.abc import Sequence

from torch import nn

from chainrule.errors import UserError, did_you_mean
from chainrule.models.low_rank import plain_name
from chainrule.models.transfer import body_of
from chainrule.recipe import Gradient

LAYER = re.compile(r"(?:^|\.)(?:blocks|layers)\.(\d+)\.")
READ = re.compile(r"(?:source_)?embedding\.|segments\.|words\.embedding\b|source_words\.|(?:stack|encoder)\.bias\.")
"""Names of weights in a numbered layer, and of those before all layers."""

ALL = "all"


def rates(model: nn.Module, settings: Gradient) -> dict[str, float]:
    """By name, the share of the learning rate that a weight has; nothing, where all have the same."""
    if settings.body_lr is None and settings.layer_decay == 1:
        return {}
    begin, share = "" if body_of(model) is model else "body.", settings.body_lr or 1.0
    names = [name.removeprefix(begin) for name, _ in model.named_parameters() if name.startswith(begin)]
    top = 1 + layers_of(names)
    return {f"{begin}{name}": share * settings.layer_decay ** (top - height)
            for name, height in _heights(names, top).items()}


def layers_of(names: Sequence[str]) -> int:
    return max(_heights(names, 0).values(), default=0)


def _heights(names: Sequence[str], top: int) -> dict[str, int]:
    """0 for embeddings, then the number of the layer from 1, then the top. `above` stands upon `below` (seq2seq)."""
    numbers = {name: int(found[1]) + 1 for name in names if (found := LAYER.search(name))}
    under = max((number for name, number in numbers.items() if name.startswith("below.")), default=0)
    heights = {name: 0 if READ.match(plain_name(name)) else top for name in names}
    return heights | {name: number + under * name.startswith("above.") for name, number in numbers.items()}


def freeze(body: nn.Module, wanted: Sequence[str]) -> None:
    """What `train.freeze` names learns no more."""
    names = [name for name, _ in body.named_parameters()]
    for word in wanted:
        for name in _named(word, names):
            body.get_parameter(name).requires_grad_(False)


def _named(word: str, names: Sequence[str]) -> list[str]:
    if word == ALL:
        return list(names)
    if word.isdecimal():
        layers = layers_of(names)
        if int(word) > layers:
            raise UserError(f"train.freeze={word}: the body has {layers} layers.")
        return [name for name, height in _heights(names, layers + 1).items() if height <= int(word)]
    found = [name for name in names if f"{name}.".startswith(f"{word}.")]
    if not found:
        parts = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
        tops = sorted({name.partition(".")[0] for name in names})
        near = did_you_mean(word, sorted(parts)) or f" It has {', '.join(tops)}."
        raise UserError(f"train.freeze={word} is not the beginning of the name of any weight of the body.{near}")
    return found

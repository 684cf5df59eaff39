"""One dial, `--minutes`: what of a network was left open is chosen to fit its text and its time, and said.

Depth, width, context, batch, learning rate and dropout are those that `fair` gives the kind; whatever was asked for by
name stays as asked, and a network whose size was asked for is left alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from chainrule.device import choose_device
from chainrule.fair import FAMILIES, Compare, Ground, Share, choose
from chainrule.progress import say
from chainrule.recipe import Recipe
from chainrule.text.corpus import prepare

SIZES = ("size", "layers", "width", "hidden", "heads", "context", "embedding", "order")
SAID = ("model.layers", "model.width", "model.hidden", "model.context", "model.dropout", "train.tokens", "train.lr")


def turned(
    recipe: Recipe, given: Mapping[str, Any], texts: Sequence[str], valid: Sequence[str], minutes: float, device: str
) -> Recipe:
    """The recipe with its open settings chosen; as it is, where there is nothing to choose."""
    if recipe.task != "lm" or recipe.kind not in FAMILIES or any(f"model.{size}" in given for size in SIZES):
        return recipe
    corpus = prepare(texts, recipe.text, valid=valid)
    ground = Ground(corpus.tokenizer.unit, len(corpus.tokenizer), len(corpus.splits["train"].tokens))
    chosen = choose(recipe.kind, ground, Share.of(minutes, choose_device(device).type, Compare()), given)
    parts = ((name, *name.split(".")) for name in SAID)
    made = [f"{name}={getattr(getattr(chosen, part), field):g}" for name, part, field in parts
            if getattr(getattr(chosen, part), field, None) is not None]
    say(f"for {minutes:g} minutes: {', '.join(made)} (each can be given instead)")
    return chosen

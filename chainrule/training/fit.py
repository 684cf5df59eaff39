"""One way in for every model: how it learns is its own declaration."""

from collections.abc import Callable, Mapping
from typing import Any

from chainrule.recipe import Recipe
from chainrule.run import Done
from chainrule.text.corpus import Corpus
from chainrule.training.checkpoint import Checkpoints
from chainrule.training.counting import count
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.log import Log
from chainrule.training.trainer import descend
from chainrule.training.word_vectors import pair

LEARNERS: Mapping[str, Callable[..., Done]] = {"counting": count, "gradient": descend, "pairs": pair}


def fit(
    model: Any,
    corpus: Corpus,
    recipe: Recipe,
    log: Log,
    done: Done | None = None,
    checkpoints: Checkpoints | None = None,
    ranks: Ranks = ALONE,
) -> Done:
    """Train `model` in place, from where `done` or the checkpoints say it is, and say how far it came."""
    return LEARNERS[model.learns_by](model, corpus, recipe.train, log, done or Done(), checkpoints, ranks)

"""One way in for every model: how it learns is its own declaration."""

from typing import Any

from chainrule.recipe import Recipe
from chainrule.run import Done
from chainrule.text.corpus import Corpus
from chainrule.train.counting import count
from chainrule.train.log import Log

LEARNERS = {"counting": count}


def fit(model: Any, corpus: Corpus, recipe: Recipe, log: Log, done: Done | None = None) -> Done:
    """Train `model` in place, from where `done` says it is, and say how far it came."""
    return LEARNERS[model.learns_by](model, corpus, recipe.train, log, done or Done())

"""Every language model, from counting words to GPT, behind one small protocol.

    p(w1 … wT) = Π p(wt | w1 … wt-1)

The names below are the public ones. Each is fetched when first asked for, so that importing chainrule costs nothing.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule.errors import UserError as UserError
    from chainrule.look.shown import look as look
    from chainrule.model import BOUNDARY as BOUNDARY
    from chainrule.model import Batch as Batch
    from chainrule.model import LanguageModel as LanguageModel
    from chainrule.model import Model as Model
    from chainrule.model import watch as watch
    from chainrule.models import build as build
    from chainrule.recipe import Recipe as Recipe
    from chainrule.recipe import make_recipe as make_recipe
    from chainrule.run import Run as Run
    from chainrule.run import load as load
    from chainrule.run import save as save
    from chainrule.text.corpus import prepare as prepare
    from chainrule.text.tokenizer import Tokenizer as Tokenizer
    from chainrule.train.base import recipe_on as recipe_on
    from chainrule.train.fit import fit as fit
    from chainrule.train.pipeline import make_run as make_run
    from chainrule.train.pipeline import recipe_for as recipe_for
    from chainrule.use.evaluate import evaluate as evaluate
    from chainrule.use.sample import generate as generate
    from chainrule.use.score import score_sentences as score_sentences

__version__ = "0.1.0"

# Threads that wait should soon sleep. Left alone torch's spin for long, and where anything else runs on the same cores
# each step then waits for a thread that cannot run (benchmarks/threads.py). libgomp reads this as torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

_WHERE = {
    "errors": ("UserError",),
    "model": ("BOUNDARY", "Batch", "LanguageModel", "Model", "watch"),
    "models": ("build",),
    "recipe": ("Recipe", "make_recipe"),
    "run": ("Run", "load", "save"),
    "text.corpus": ("prepare",),
    "text.tokenizer": ("Tokenizer",),
    "train.base": ("recipe_on",),
    "train.fit": ("fit",),
    "train.pipeline": ("make_run", "recipe_for"),
    "use.evaluate": ("evaluate",),
    "use.sample": ("generate",),
    "use.score": ("score_sentences",),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}

__all__ = ["__version__", "look", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "look":    # a package that can be called
        return import_module(f"{__name__}.look")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

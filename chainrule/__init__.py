"""chainrule: every language model, from counting words to GPT, behind one small protocol.

    p(w1 … wT) = Π p(wt | w1 … wt-1)

The names below are public. Each is imported when it is first used, so that `import chainrule` does not import torch.
"""

import gc
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule.api import train as train
    from chainrule.errors import UserError as UserError
    from chainrule.inference.evaluate import evaluate as evaluate
    from chainrule.inference.generate import generate as generate
    from chainrule.inference.score import score_sentences as score_sentences
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
    from chainrule.text.tokenizers.tokenizer import Tokenizer as Tokenizer
    from chainrule.training.finetune import finetune_recipe as finetune_recipe
    from chainrule.training.pipeline import make_run as make_run
    from chainrule.training.pipeline import recipe_for as recipe_for
    from chainrule.training.pipeline import train_model as train_model
    from chainrule.viewer.notebook import look as look

__version__ = "0.1.0"

# Idle OpenMP threads should sleep soon. By default they spin for a long time, and where other processes use the same
# cores each step then waits for a thread that cannot run (benchmarks/speed/threads.py). libgomp reads it when loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

_WHERE = {
    "api": ("train",),
    "errors": ("UserError",),
    "model": ("BOUNDARY", "Batch", "LanguageModel", "Model", "watch"),
    "models": ("build",),
    "recipe": ("Recipe", "make_recipe"),
    "run": ("Run", "load", "save"),
    "text.corpus": ("prepare",),
    "text.tokenizers.tokenizer": ("Tokenizer",),
    "viewer.notebook": ("look",),
    "training.finetune": ("finetune_recipe",),
    "training.pipeline": ("make_run", "recipe_for", "train_model"),
    "inference.evaluate": ("evaluate",),
    "inference.generate": ("generate",),
    "inference.score": ("score_sentences",),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_part(_MODULES[name]), name)


def import_part(name: str) -> ModuleType:
    """Imports `chainrule.NAME`. With torch come 250,000 objects that stay: looking through them for garbage, again and
    again, would make start-up half as long again."""
    if "torch" in sys.modules:
        return import_module(f"{__name__}.{name}")
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(f"{__name__}.{name}")
    finally:
        gc.freeze()    # what is here stays, and is not looked through later
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

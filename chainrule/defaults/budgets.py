"""Budgets, and the model sizes that fit them: all kinds of a comparison get the same text and the same time or FLOPs.

A network is as large as the budget can train (TOKENS_PER_PARAMETER), and a token costs all networks about the same, so
with the same FLOPs they see the same number of tokens. All are trained by Muon at one learning rate. Counting has no
budget: an n-gram reads the text once, and EM gets as many rounds as fit. The choices are printed, and every one can be
overridden (`gpt.model.layers=4`). A single network of `chainrule train` gets its size in the same way (choose.py).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from chainrule import models, settings
from chainrule.defaults.rates import MAX_EPOCHS, dropout_for, rate_settings
from chainrule.errors import UserError
from chainrule.model import LanguageModel
from chainrule.models.published import PUBLISHED
from chainrule.plan import work_of
from chainrule.recipe import Recipe, over
from chainrule.tasks import recipe_for
from chainrule.text.corpus import Corpus

SPEED = {"cpu": 5e10, "cuda": 2e13}
"""FLOPs per second of small networks in training: to choose sizes by, never to measure by."""

TOKENS_PER_PARAMETER = 8    # more would be wasted in so short a time
MAX_ROUNDS = 500            # of EM
SMALL = 1e6                 # parameters of a small network
WIDTHS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560,
          3072, 4096, 5120, 6144, 8192)


@cache
def ladder_kinds() -> tuple[str, ...]:
    """Kinds that predict a text from its past alone, in the order of KINDS; published sizes are all GPTs."""
    classes = {kind: models.model_class(kind) for kind in models.KINDS if kind not in PUBLISHED}
    return tuple(kind for kind, cls in classes.items() if issubclass(cls, LanguageModel) and "lm" in cls.tasks)

Flops = Annotated[float, settings.Range(above=0, most=1e30)]


@dataclass(frozen=True)
class Compare(settings.Settings, part="compare"):
    """`compare.*`"""

    by: Literal["minutes", "flops"] = "minutes"  # the budget that is equal for all kinds
    flops: Flops | None = None      # that budget, for by=flops; none: what --minutes allow at the usual speed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.flops is not None and self.by == "minutes":
            raise UserError(f"compare.flops={self.flops:g} is for compare.by=flops.")


@dataclass(frozen=True)
class Budget:
    """What each kind gets: seconds, or FLOPs."""

    by: str
    seconds: float
    flops: float            # by the clock: those that usually fit in the seconds
    gpu: bool = False

    @classmethod
    def of(cls, minutes: float, device: str, compare: Compare) -> "Budget":
        if not 0 < minutes < math.inf:
            raise UserError(f"--minutes {minutes:g}: it must be more than 0.")
        return cls(compare.by, 60 * minutes, compare.flops or 60 * minutes * SPEED[device], device == "cuda")

    @property
    def parameters(self) -> float:
        """Of a network that sees TOKENS_PER_PARAMETER tokens for each of them in the budget."""
        return math.sqrt(self.flops / (6 * TOKENS_PER_PARAMETER))

    @property
    def is_small(self) -> bool:
        return self.parameters < SMALL

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.by == "minutes" else f"{self.flops:.3g} FLOPs"


@dataclass(frozen=True)
class CorpusSize:
    """The training text, as far as sizes depend on it."""

    unit: str               # what a token is
    vocab: int
    tokens: int             # targets of the training text

    @classmethod
    def of(cls, corpus: Corpus) -> "CorpusSize":
        return cls(corpus.tokenizer.unit, len(corpus.tokenizer), len(corpus.splits["train"].tokens) - 1)


DottedSettings = Mapping[str, Any]


def recipe_for_budget(
    kind: str, corpus: CorpusSize, budget: Budget, given: DottedSettings, tokens: float | None = None
) -> Recipe:
    """The recipe of a kind under a budget. `given`: settings of the user, which override any choice; `tokens`: those
    that a network of this kind can be trained on in the time, if that was measured."""
    chosen: DottedSettings = {}
    if models.model_class(kind).learns_by == "gradient":
        chosen = _network(kind, corpus, budget, given, tokens or TOKENS_PER_PARAMETER * budget.parameters)
    elif sizes := candidates(kind, budget, corpus):
        chosen = sizes[0]
        if flops := token_flops(recipe_for(kind, chosen), corpus):
            chosen = {**chosen, "train.steps": rounds_in(budget.flops, flops * corpus.tokens)}
    return recipe_for(kind, over(chosen, given))


def candidates(kind: str, budget: Budget, corpus: CorpusSize) -> list[DottedSettings]:
    """The sizes that its class proposes, without the settings that define the kind."""
    preset = models.kind(kind).preset
    sizes = models.model_class(kind).candidate_settings(WIDTHS, budget, corpus)
    return [{name: value for name, value in size.items() if name not in preset} for size in sizes]


def token_flops(recipe: Recipe, corpus: CorpusSize) -> float | None:
    """To train on one token; None for kinds that only count."""
    cls = models.model_class(recipe.kind)
    if cls.learns_by != "gradient":
        flops: float | None = cls.round_flops(recipe.model)
        return flops
    return work_of(recipe, corpus.vocab, recipe.train.length or getattr(recipe.model, "context", 0)).flops


def rounds_in(budget: float, each: float) -> int:
    """Rounds of EM that fit into a budget, of `each` seconds or FLOPs."""
    return max(1, min(MAX_ROUNDS, round(budget / each)))


def _network(kind: str, corpus: CorpusSize, budget: Budget, given: DottedSettings, tokens: float) -> DottedSettings:
    """Size and training of a network that gets the whole budget, in which it reads so many tokens."""
    training = training_settings(corpus, budget, tokens, given)
    size = size_for(kind, corpus, budget, over(training, given))
    end = {"train.minutes": budget.seconds / 60}
    if budget.by == "flops":
        flops = token_flops(recipe_for(kind, over({**size, **training}, given)), corpus) or 1.0
        end = {"train.total_tokens": max(1, round(budget.flops / flops))}
    return {**size, **training, **end}


def size_for(kind: str, corpus: CorpusSize, budget: Budget, given: DottedSettings) -> DottedSettings:
    """The candidate whose FLOPs per token are nearest to those of the budget's number of parameters."""
    sizes = candidates(kind, budget, corpus)
    flops = [token_flops(recipe_for(kind, over(size, given)), corpus) or 1.0 for size in sizes]
    best = min(range(len(sizes)), key=lambda place: abs(math.log(flops[place] / (6 * budget.parameters))))
    return sizes[best]


def training_settings(corpus: CorpusSize, budget: Budget, tokens: float, given: DottedSettings) -> DottedSettings:
    """The same for all networks that read so many tokens; more than MAX_EPOCHS need evaluations."""
    optimizer, epochs = str(given.get("train.optimizer", "muon")), tokens / corpus.tokens
    step = step_tokens(corpus, budget)
    return {
        **rate_settings(optimizer, budget.parameters, tokens / step),
        "train.tokens": step, "train.checkpoint": 30.0,
        "train.evaluate": 0.05 if epochs > MAX_EPOCHS or "train.patience" in given else 0.0,
        "model.dropout": dropout_for(epochs, budget.parameters / corpus.tokens),
    }


def step_tokens(corpus: CorpusSize, budget: Budget) -> int:
    """Targets in one step."""
    tokens = corpus.tokens // 16
    return min(1024, max(64, tokens)) if budget.is_small else min(8192, max(256, tokens))

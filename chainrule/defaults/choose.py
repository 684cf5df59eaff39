"""Defaults of a training run: size, batch size, optimizer, learning rate, dropout and end, where they are not given.

    what is chosen = f(text or examples, kind, task, device, budget); what is given stays as it is

The same choice is made however the budget is given: in minutes, steps, epochs, tokens or not at all. One line says what
was chosen, and by what. On a CPU `--minutes` measures a step first (clock.py).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chainrule import models, run
from chainrule.defaults.budgets import (
    TOKENS_PER_PARAMETER,
    Budget,
    Compare,
    CorpusSize,
    candidates,
    ladder_kinds,
    size_for,
    step_tokens,
    token_flops,
)
from chainrule.defaults.clock import Clock, evaluate_share, measure_step
from chainrule.defaults.example_defaults import example_settings, facts_of, ngram_reading
from chainrule.defaults.rates import MAX_EPOCHS, SIZES, STEPS, dropout_for, rate_settings
from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.models.published import PUBLISHED
from chainrule.progress import say, short
from chainrule.recipe import BUDGETS, Counting, Gradient, Recipe, over
from chainrule.settings import flatten
from chainrule.tasks import find_task, recipe_for
from chainrule.text.corpus import Corpus, prepare

USUAL_MINUTES = 10          # what a network is sized for, where no time is given
PER_TOKEN = 10              # parameters for each token of the text, at most
FEWEST_TOKENS = 256         # in a step and in an evaluation, where the clock makes them small
FEWEST = 5e4                # parameters, at least
EPOCHS = (1.0, 20.0)        # passes over a text, where no budget is given
PRINTED = ("model.layers", "model.width", "model.hidden", "model.context", "model.dropout", "train.tokens",
           "train.optimizer", "train.lr", "train.epochs")
CHOSEN = ("train.tokens", "train.evaluate_tokens", "train.evaluate", "train.optimizer", "train.lr", "train.momentum",
          "train.schedule", "train.final_lr", "train.length", "train.precision", "train.checkpoint", "model.dropout",
          "model.attention_dropout", "model.weight_dropout", "model.locked_dropout", "model.head_size",
          "model.kv_heads", "model.tied", *(f"model.{size}" for size in SIZES))
"""Settings that may be chosen by a measurement, which would not be the same a second time."""

DottedSettings = Mapping[str, Any]


def choose_defaults(
    recipe: Recipe, given: DottedSettings, texts: Sequence[str], *, valid: Sequence[str] = (), device: str = "auto",
    out: Path | None = None, fixed: bool = False,
) -> Recipe:
    """The recipe with all that was not given chosen for the data. `out`: where its run may have begun already; `fixed`:
    a recipe file says what is not given, and only the evaluation is fitted to the minutes."""
    task, train = find_task(recipe.task), recipe.train
    own = task.train or task.own_training    # the task has defaults of its own
    if isinstance(train, Counting) and task.name == "classify" and not fixed:
        return _counting(recipe, given, texts, valid)
    if own or not isinstance(train, Gradient) or recipe.kind in PUBLISHED or (fixed and train.minutes is None):
        return recipe
    where = choose_device(device).type
    if task.name == "lm" and recipe.kind in ladder_kinds():
        if (before := chosen_before(out, recipe, given)) is not None:
            return before
        text = Text.of(prepare(texts, recipe.text, valid=valid), recipe, given, where)
        chosen = text.evaluation({}) if fixed else text.choose()
        why = f"{short(text.size.tokens)} tokens of text, {text.until}, on {'a CPU' if where == 'cpu' else 'a GPU'}"
    elif fixed:
        return recipe
    else:
        chosen, why = example_settings(recipe, given, texts, valid, where)
    if "train.lr" in given and "train.optimizer" not in given:    # a learning rate is for the kind's own optimizer
        chosen = {name: value for name, value in chosen.items() if name not in ("train.optimizer", "train.momentum")}
    made = recipe_for(recipe.kind, over(chosen, given), recipe.task)
    return made if fixed else _tell(recipe, made, why)


def _counting(recipe: Recipe, given: DottedSettings, texts: Sequence[str], valid: Sequence[str]) -> Recipe:
    """A classifier that counts reads characters where words would be unknown to it; one with a weight for each n-gram
    also where the texts are few."""
    read: Any = find_task(recipe.task).complete(recipe, texts).text
    by_itself = models.model_class(recipe.kind).classifies
    if read.input == "frames" or ("text.tokenizer" in given and not by_itself):
        return recipe
    facts = facts_of(recipe, given, texts, valid, "cpu")
    chosen = ngram_reading(facts, given) if by_itself else facts.reading if facts.unit != "words" else {}
    if chosen.keys() <= given.keys():
        return recipe
    return _tell(recipe, recipe_for(recipe.kind, over(chosen, given), recipe.task), str(facts))


def _tell(before: Recipe, chosen: Recipe, why: str) -> Recipe:
    """Says what differs from the kind's own settings and can be given instead."""
    old, new = flatten(before.as_dict()), flatten(chosen.as_dict())
    made = [f"{name}={new[name]:g}" if isinstance(new[name], float) else f"{name}={new[name]}"
            for name in PRINTED if new.get(name) is not None and isinstance(chosen.train, Gradient)]
    parts = ("text", "head", "model") if isinstance(chosen.train, Counting) else ("text", "head")
    made += [f"{name}={value}" for name, value in new.items()
             if name.split(".")[0] in parts and value != old.get(name)]
    say(f"chosen for {why}: {', '.join(made)} (each can be given instead)")
    return chosen


def chosen_before(out: Path | None, recipe: Recipe, given: DottedSettings) -> Recipe | None:
    """The recipe of a run at `out` that was begun by the same command: a measurement is not made twice."""
    if recipe.train.minutes is None or out is None or not out.is_dir():
        return None
    try:
        about = run.read_begun(out) or run.read_about(out)
        there = run.recipe_of(out, about)
    except UserError:
        return None
    old, new = flatten(there.as_dict()), flatten(recipe.as_dict())
    same = all(old.get(name) == value for name, value in new.items() if name in given or name not in CHOSEN)
    return there if same else None


@dataclass(frozen=True)
class Text:
    """A running text, the network that is to learn it, and for how long."""

    corpus: Corpus
    size: CorpusSize
    recipe: Recipe              # with the kind's own settings in place of what was not given
    given: DottedSettings
    device: str

    @classmethod
    def of(cls, corpus: Corpus, recipe: Recipe, given: DottedSettings, device: str) -> "Text":
        return cls(corpus, CorpusSize.of(corpus), recipe, given, device)

    @property
    def until(self) -> str:
        """The budget in words."""
        name, amount = self.recipe.train.budget
        named = any(f"train.{one}" in self.given for one in BUDGETS)
        return f"{amount:,g} {name.replace('_', ' ')}" if named else "no budget"

    @property
    def seconds(self) -> float | None:
        return None if self.recipe.train.minutes is None else 60 * self.recipe.train.minutes

    @property
    def sized(self) -> bool:
        """Whether the user has given a size."""
        return any(f"model.{size}" in self.given for size in SIZES)

    @property
    def _optimizer(self) -> str:
        return str(self.given.get("train.optimizer", "muon"))

    def choose(self) -> DottedSettings:
        budget = Budget.of((self.seconds or 60 * USUAL_MINUTES) / 60, self.device, Compare())
        if not candidates(self.recipe.kind, budget, self.size):    # a kind that proposes no sizes keeps its settings
            return {}
        chosen = self._settings(self._fitted(budget))
        if self.seconds is None or not self._measures():
            return chosen if self.seconds is None else {**chosen, **self.evaluation(chosen)}
        clock = self._measure(chosen)
        if not self.sized and not 0.67 < clock.flops / budget.flops < 1.5:
            faster = self._fitted(replace(budget, flops=clock.flops))
            again = self._settings(faster)
            clock = clock.for_flops(self._flops(again))
            chosen = again
        return self._to_the_clock(chosen, clock)

    def evaluation(self, chosen: DottedSettings) -> DottedSettings:
        """On as much of the validation split as the minutes allow."""
        if self.seconds is None or "valid" not in self.corpus.splits or "train.evaluate_tokens" in self.given:
            return {}
        if self._measures():
            clock = self._measure(chosen)
        else:
            clock = Clock.usual(self.device, self._flops(chosen), self.seconds)
        return self._sample(chosen, clock)

    # How it is chosen

    def _fitted(self, budget: Budget) -> Budget:
        """The budget of a network that is not too large for the text and for what is read of it."""
        most = max(FEWEST, PER_TOKEN * self.size.tokens)
        if self.seconds is None and (total := self._total(budget)) is not None:
            most = min(most, max(FEWEST, 2 * total / TOKENS_PER_PARAMETER))
        parameters = min(budget.parameters, most)
        if self.sized:
            parameters = self._flops({}) / 6
        return replace(budget, flops=6 * TOKENS_PER_PARAMETER * parameters**2)

    def _total(self, budget: Budget) -> float | None:
        """Tokens that will be read, if the user has said it."""
        name, amount = self.recipe.train.budget
        if not any(f"train.{one}" in self.given for one in BUDGETS) or name == "minutes":
            return None
        step = self.recipe.train.tokens if "train.tokens" in self.given else step_tokens(self.size, budget)
        return float(amount * {"steps": step or 1, "epochs": self.size.tokens, "total_tokens": 1}[name])

    def _settings(self, budget: Budget) -> DottedSettings:
        total = self._total(budget)
        tokens = TOKENS_PER_PARAMETER * budget.parameters if total is None else total
        epochs = tokens / self.size.tokens
        chosen: dict[str, Any] = {}
        if total is None and self.seconds is None:
            least = EPOCHS[0] if self.sized else min(EPOCHS[0], epochs)
            epochs = min(EPOCHS[1], max(least, epochs))
            chosen["train.epochs"] = float(f"{epochs:.2g}")
        if getattr(self.recipe.model, "vectors", None) is not None:
            chosen["model.tied"] = False    # the vectors of words are not made to predict them
        chosen |= rate_settings(self._optimizer, budget.parameters)
        chosen |= {**self._fixed(budget), **self._dropout(epochs, budget.parameters)}
        if not self.sized:
            chosen |= size_for(self.recipe.kind, self.size, budget, over(chosen, self.given))
        chosen["train.tokens"] = max(self._row(chosen), step_tokens(self.size, budget))
        chosen |= self._rates(chosen, epochs * self.size.tokens, budget.parameters)
        chosen["train.checkpoint"] = 30.0 if self.seconds is not None else self.recipe.train.checkpoint
        if self.seconds is not None:
            often = epochs > MAX_EPOCHS or "train.patience" in self.given
            chosen["train.evaluate"] = 0.1 if often else 0.0
        return chosen

    def _fixed(self, budget: Budget) -> DottedSettings:
        """Settings of training that go with every size of the kind."""
        first = candidates(self.recipe.kind, budget, self.size)[0]
        return {name: value for name, value in first.items() if name.startswith("train.")}

    def _rates(self, chosen: DottedSettings, tokens: float, parameters: float) -> DottedSettings:
        """For so many tokens that will be read."""
        return rate_settings(self._optimizer, parameters, tokens / (self._made(chosen).train.tokens or 1))

    def _dropout(self, epochs: float, parameters: float) -> DottedSettings:
        """On a CPU none of attention weights: torch's fused attention has none there, and is far faster."""
        chosen: dict[str, Any] = {"model.dropout": dropout_for(epochs, parameters / self.size.tokens)}
        model = self.recipe.model
        if hasattr(model, "weight_dropout"):
            chosen |= {"model.weight_dropout": 0.0, "model.locked_dropout": False}
        if isinstance(model, TransformerSettings) and self.device == "cpu":
            chosen["model.attention_dropout"] = 0.0
        return chosen

    def _row(self, chosen: DottedSettings) -> int:
        """Tokens of a row."""
        recipe = self._made(chosen)
        return int(recipe.train.length or getattr(recipe.model, "context", None) or 1)

    def _made(self, chosen: DottedSettings) -> Recipe:
        return recipe_for(self.recipe.kind, over(chosen, self.given))

    def _flops(self, chosen: DottedSettings) -> float:
        return token_flops(self._made(chosen), self.size) or 1.0

    # The clock

    def _measures(self) -> bool:
        """A step is measured on a CPU; the ranks of several processes would not measure the same."""
        return self.device == "cpu" and int(os.environ.get("WORLD_SIZE", "1")) == 1

    def _measure(self, chosen: DottedSettings) -> Clock:
        recipe = self._made(chosen)
        seconds = self.seconds or 0.0
        return Clock(seconds, measure_step(recipe, self.corpus, seconds), token_flops(recipe, self.size) or 1.0)

    def _to_the_clock(self, chosen: DottedSettings, clock: Clock) -> DottedSettings:
        """At least STEPS steps, and evaluations that leave most of the time to training."""
        tokens = min(chosen["train.tokens"], int(clock.tokens / STEPS))
        made = {**chosen, "train.tokens": max(self._row(chosen), min(FEWEST_TOKENS, chosen["train.tokens"]), tokens)}
        made |= self._dropout(clock.tokens / self.size.tokens, clock.token_flops / 6)
        made |= self._rates(made, clock.tokens, clock.token_flops / 6)
        return {**made, **self._sample(made, clock)}

    def _sample(self, chosen: DottedSettings, clock: Clock) -> DottedSettings:
        if "valid" not in self.corpus.splits:
            return {}
        most = max(FEWEST_TOKENS, evaluate_share(self._made(chosen).train) * clock.tokens)
        held_out = len(self.corpus.splits["valid"].tokens) - 1
        return {"train.evaluate_tokens": int(most)} if most < held_out else {}


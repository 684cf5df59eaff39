"""The training budget, the learning-rate schedule (warm-up, then cosine, linear or WSD decay), and when to evaluate.

All of them are functions of progress: the fraction of training that is done, counted in steps, or in seconds where the
budget is in minutes.
"""

import math
from dataclasses import dataclass

from chainrule.recipe import Gradient

MAX_EVALUATIONS = 20
"""Most evaluations on the validation split, where train.evaluate is left to us."""


@dataclass(frozen=True)
class TrainingBudget:
    steps: int | None         # until the end; None: the clock decides
    seconds: float | None     # until the end; None: the steps decide
    epoch: float              # steps in one epoch

    def total_seconds(self, step: float) -> float:
        """Of all training, if a step takes so many."""
        return (self.seconds or 0) if self.steps is None else self.steps * step

    def progress(self, step: float, seconds: float) -> float:
        """The fraction of training that is done after so many steps and seconds; 1 is the end."""
        return step / self.steps if self.steps is not None else seconds / (self.seconds or 1)


def make_budget(settings: Gradient, epoch: float, tokens: int) -> TrainingBudget:
    """`epoch`: steps in one epoch; `tokens`: targets in one step."""
    name, amount = settings.budget
    if name == "minutes":
        return TrainingBudget(None, 60 * amount, epoch)
    steps = {"steps": amount, "epochs": amount * epoch, "total_tokens": amount / tokens}[name]
    return TrainingBudget(max(1, round(steps)), None, epoch)


def lr_factor(settings: Gradient, progress: float) -> float:
    """What the learning rate is multiplied by: warm-up from 0 to 1, then decay to `final_lr`."""
    warmup = min(1.0, progress / settings.warmup) if settings.warmup else 1.0
    return warmup * (settings.final_lr + (1 - settings.final_lr) * _decay(settings, progress))


def _decay(settings: Gradient, progress: float) -> float:
    """From 1 at the top to 0 at the end."""
    if settings.schedule == "constant":
        return 1.0
    begin = 1 - settings.decay if settings.schedule == "wsd" else settings.warmup    # WSD: warm-up, stable, decay
    decayed = min(1.0, max(0.0, (progress - begin) / max(1 - begin, 1e-9)))
    return (1 + math.cos(math.pi * decayed)) / 2 if settings.schedule == "cosine" else 1 - decayed


@dataclass(frozen=True)
class EvaluationSchedule:
    """When to evaluate: so many steps, and so much progress, after the last evaluation."""

    steps: float
    progress: float

    def due(self, steps: float, progress: float) -> bool:
        return steps >= self.steps - 1e-6 and progress >= self.progress - 1e-9


def make_evaluation_schedule(settings: Gradient, budget: TrainingBudget) -> EvaluationSchedule:
    every = settings.evaluate
    if every is None:
        return EvaluationSchedule(budget.epoch, 1 / MAX_EVALUATIONS)
    if every == 0:
        return EvaluationSchedule(math.inf, math.inf)
    return EvaluationSchedule(every, 0.0) if every >= 1 else EvaluationSchedule(1, every)

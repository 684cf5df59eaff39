"""When training ends, and how the learning rate goes until then. Both know only the share of training that is behind.

The share is counted in steps, or read from the clock where the budget is in minutes.
"""

import math
from dataclasses import dataclass

from chainrule.recipe import Gradient

LOOKS = 20
"""Most looks at the validation text, where their number is left to us."""


@dataclass(frozen=True)
class Budget:
    steps: int | None         # until the end; None: the clock decides
    seconds: float | None     # likewise
    epoch: float              # steps in one reading of the text

    def share(self, step: float, seconds: float) -> float:
        """How much of training is behind after so many steps and seconds; 1 is the end."""
        return step / self.steps if self.steps is not None else seconds / (self.seconds or 1)


def make_budget(settings: Gradient, epoch: float, tokens: int) -> Budget:
    """`epoch`: steps in one reading of the text; `tokens`: targets in one step."""
    name, amount = settings.budget
    if name == "minutes":
        return Budget(None, 60 * amount, epoch)
    steps = {"steps": amount, "epochs": amount * epoch, "total_tokens": amount / tokens}[name]
    return Budget(max(1, round(steps)), None, epoch)


def rate(settings: Gradient, share: float) -> float:
    """What the learning rate is multiplied by when `share` of training is behind."""
    rise = min(1.0, share / settings.warmup) if settings.warmup else 1.0
    return rise * (settings.final_lr + (1 - settings.final_lr) * _height(settings, share))


def _height(settings: Gradient, share: float) -> float:
    """1 at the top, 0 at the bottom."""
    if settings.schedule == "constant":
        return 1.0
    begin = 1 - settings.decay if settings.schedule == "wsd" else settings.warmup
    fallen = min(1.0, max(0.0, (share - begin) / max(1 - begin, 1e-9)))
    return (1 + math.cos(math.pi * fallen)) / 2 if settings.schedule == "cosine" else 1 - fallen


@dataclass(frozen=True)
class Looks:
    """When to look at the validation text: so many steps and so large a share of training after the last look."""

    steps: float
    share: float

    def due(self, steps: float, share: float) -> bool:
        return steps >= self.steps - 1e-6 and share >= self.share - 1e-9


def make_looks(settings: Gradient, budget: Budget) -> Looks:
    every = settings.evaluate
    if every is None:
        return Looks(budget.epoch, 1 / LOOKS)
    if every == 0:
        return Looks(math.inf, math.inf)
    return Looks(every, 0.0) if every >= 1 else Looks(1, every)

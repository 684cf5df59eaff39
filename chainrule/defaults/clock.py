"""The clock: tokens that a CPU trains on in the time that is asked for, measured by a few steps."""

import math
import statistics
import time
from dataclasses import dataclass, replace

import torch

from chainrule import kernels
from chainrule.defaults.budgets import SPEED
from chainrule.device import choose_precision, keep_freed_memory
from chainrule.recipe import Gradient, Recipe
from chainrule.tasks import build_for
from chainrule.tasks.lm import LM
from chainrule.text.corpus import Corpus
from chainrule.training.compile.cpu_kernels import use_cpu_kernels
from chainrule.training.param_groups import Optimizers
from chainrule.training.schedule import TrainingBudget

TRIALS = 3              # steps that are timed, after one more
LEAST_SAMPLE = 0.02     # of the time, for one of several evaluations
LAST = 0.15             # of the time, for the only one: a quarter is the most, and the clock may be wrong
SLACK = 0.9             # of the time that goes into steps


@dataclass(frozen=True)
class Clock:
    seconds: float          # of training
    speed: float            # tokens a second
    token_flops: float      # of the network that was measured

    @classmethod
    def usual(cls, device: str, token_flops: float, seconds: float) -> "Clock":
        """Without a measurement."""
        return cls(seconds, SPEED[device] / token_flops, token_flops)

    @property
    def tokens(self) -> float:
        """That it can be trained on."""
        return max(1.0, SLACK * self.seconds * self.speed)

    @property
    def flops(self) -> float:
        return self.seconds * self.speed * self.token_flops

    def for_flops(self, token_flops: float) -> "Clock":
        """Of another size of the same kind."""
        return replace(self, speed=self.speed * self.token_flops / token_flops, token_flops=token_flops)


def evaluate_share(train: Gradient) -> float:
    """The part of training's tokens that an evaluation may read; it takes less time for a token than a step does."""
    return LAST if train.evaluate == 0 else LEAST_SAMPLE


def measure_step(recipe: Recipe, corpus: Corpus, seconds: float) -> float:
    """Tokens a second of training for so long, on this CPU as busy as it is now. No random number of the run changes.
    """
    keep_freed_memory()    # as training does
    with torch.random.fork_rng(devices=[]):
        model = build_for(recipe, len(corpus.tokenizer)).train()
        order = LM.order(model, corpus, recipe.train)
        precision = choose_precision(recipe.train.precision, torch.device("cpu"))
        optimizers = Optimizers(model, recipe.train)
        budget = TrainingBudget(None, seconds, order.epoch)
        fused = use_cpu_kernels(model, recipe.train, budget, order.targets)
        times = []
        for step in range(1 + TRIALS):
            batch = order.at(step % max(1, math.floor(order.epoch)))
            began = time.perf_counter()
            with precision(), kernels.in_training(fused):
                nats, count, *_ = model.loss(batch)
            (nats / count).backward()
            optimizers.step()
            optimizers.zero_grad()
            times.append(time.perf_counter() - began)
    return float(order.targets) / statistics.median(times[1:])

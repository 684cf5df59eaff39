"""The clock: tokens that a CPU trains on in the time that is asked for, measured by a few steps."""

import math
import statistics
import time
from dataclasses import dataclass, replace

import torch

from chainrule.defaults.budgets import SPEED
from chainrule.device import choose_precision
from chainrule.recipe import Gradient, Recipe
from chainrule.tasks import build_for
from chainrule.tasks.lm import LM
from chainrule.text.corpus import Corpus
from chainrule.training.param_groups import Optimizers

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


def measure_step(recipe: Recipe, corpus: Corpus) -> float:
    """Tokens a second of training, on this CPU as busy as it is now. It changes no random number of the run."""
    with torch.random.fork_rng(devices=[]):
        model = build_for(recipe, len(corpus.tokenizer)).train()
        order = LM.order(model, corpus, recipe.train)
        precision = choose_precision(recipe.train.precision, torch.device("cpu"))
        optimizers = Optimizers(model, recipe.train)
        seconds = []
        for step in range(1 + TRIALS):
            batch = order.at(step % max(1, math.floor(order.epoch)))
            began = time.perf_counter()
            with precision():
                nats, count, *_ = model.loss(batch)
            (nats / count).backward()
            optimizers.step()
            optimizers.zero_grad()
            seconds.append(time.perf_counter() - began)
    return float(order.targets) / statistics.median(seconds[1:])

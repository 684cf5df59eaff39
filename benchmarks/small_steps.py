"""Training steps of a small GPT on a CPU against an LSTM of that size, with and without dropout of attention weights.

    python benchmarks/small_steps.py [--turns 9] [--threads 1]

All take turns in one process, on the same random tokens: 1,024 targets a step, Muon, 2 layers of 128 (GPT) and one of
256 (LSTM). *before*: dropout of 0.1 also of attention weights, for which torch has no fused kernel on a CPU; *after*:
what is chosen today. A JSON line: tokens per second of CPU time by model, the median of the turns, and the ratios.
"""

import argparse
import json
import statistics
import time
from types import SimpleNamespace
from typing import Any

import chainrule  # noqa: F401 (before torch, since it sets how long torch's threads spin)

# isort: split
import numpy as np
import torch

from chainrule.recipe import Recipe
from chainrule.tasks import build_for, recipe_for
from chainrule.tasks.lm import LM
from chainrule.text.corpus import Split
from chainrule.training.param_groups import Optimizers

VOCAB, TARGETS, STEPS = 256, 1024, 2
GPT = {"model.layers": 2, "model.width": 128, "model.heads": 4, "model.context": 64, "model.dropout": 0.1}
LSTM = {"model.layers": 1, "model.hidden": 256, "model.dropout": 0.1, "model.weight_dropout": 0.0, "train.length": 64}
MODELS = {
    "gpt before": ("gpt", {**GPT, "model.attention_dropout": 0.1}),
    "gpt after": ("gpt", {**GPT, "model.attention_dropout": 0.0}),
    "lstm": ("lstm", LSTM),
}


class Turn:
    def __init__(self, recipe: Recipe, corpus: Any):
        torch.manual_seed(1)
        self.model = build_for(recipe, VOCAB).train()
        self.order, self.optimizers = LM.order(self.model, corpus, recipe.train), Optimizers(self.model, recipe.train)

    def take(self) -> float:
        """Tokens a second of CPU time."""
        began = time.process_time()
        for step in range(STEPS):
            nats, count, *_ = self.model.loss(self.order.at(step))
            (nats / count).backward()
            self.optimizers.step()
            self.optimizers.zero_grad()
        return STEPS * self.order.targets / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokens = np.random.default_rng(1).integers(1, VOCAB, 100_000).astype(np.uint16)
    corpus = SimpleNamespace(splits={"train": Split(tokens, len(tokens), 1, "")})
    given = {"train.tokens": TARGETS, "train.optimizer": "muon"}
    turns = {name: Turn(recipe_for(kind, {**given, **own}), corpus) for name, (kind, own) in MODELS.items()}
    speeds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(args.turns + 1):
        for name, turn in turns.items():
            speed = turn.take()
            speeds[name] += [speed] if number else []
    median = {name: statistics.median(some) for name, some in speeds.items()}
    parameters = {name: sum(weight.numel() for weight in turn.model.parameters()) for name, turn in turns.items()}
    print(json.dumps({
        "tokens_per_second": {name: round(value) for name, value in median.items()}, "parameters": parameters,
        "after_over_before": round(median["gpt after"] / median["gpt before"], 2),
        "before_over_lstm": round(median["gpt before"] / median["lstm"], 2),
        "after_over_lstm": round(median["gpt after"] / median["lstm"], 2), "threads": args.threads,
    }))


if __name__ == "__main__":
    main()

"""Training steps of small GPTs on a CPU, against an LSTM of that size and against an older commit.

    python benchmarks/speed/small_steps.py [--before DIR] [--width 96] [--turns 9] [--threads 1] [--wall]

DIR is a checkout of the older commit (`git worktree add DIR 02f14cf`); without it only today's steps are measured. Each
model has a process of its own, and they take turns on the same random characters: 1,024 targets a step, Muon, 2 layers
(GPT), context 64, and one layer of about as many parameters (LSTM). *dropped*: dropout of 0.1, before also of attention
weights, for which torch has no fused kernel on a CPU; *plain*: no dropout, as is chosen for a short run. Products are
in the precision that training chooses, or in that of `--precision` (of the GPTs). A JSON line:
milliseconds of CPU time for a step, the median of the turns, and ratios; with `--wall` milliseconds by the clock, for a
machine that has nothing else to do.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VOCAB, TARGETS, STEPS, CONTEXT = 360, 1024, 3, 64
HERE = Path(__file__).resolve().parents[2]
MUON = {"train.tokens": TARGETS, "train.optimizer": "muon"}


def models(width: int, before: Path | None, precision: str = "auto") -> dict[str, tuple[Path, str, dict[str, Any]]]:
    """The tree, kind and settings of each."""
    gpt = {**MUON, "train.precision": precision, "model.layers": 2, "model.width": width,
           "model.heads": max(1, width // 32), "model.context": CONTEXT}
    lstm = {**MUON, "model.layers": 1, "model.hidden": 5 * width // 3 // 8 * 8, "model.weight_dropout": 0.0,
            "train.length": 32, "train.precision": "float32"}
    made: dict[str, tuple[Path, str, dict[str, Any]]] = {
        "dropped": (HERE, "gpt", {**gpt, "model.dropout": 0.1, "model.attention_dropout": 0.0}),
        "plain": (HERE, "gpt", {**gpt, "model.dropout": 0.0}),
        "lstm": (HERE, "lstm", {**lstm, "model.dropout": 0.0}),
    }
    if before is not None:
        made["before"] = (before, "gpt", {**gpt, "model.dropout": 0.1})
        made["lstm before"] = (before, "lstm", {**lstm, "model.dropout": 0.1})
    return made


class Steps:
    """A model that is trained, in the code of today or in that of 02f14cf."""

    def __init__(self, kind: str, settings: dict[str, Any]):
        import chainrule  # noqa: F401 (before torch, since it sets how long torch's threads spin)

        # isort: split
        import numpy as np
        import torch

        from chainrule.tasks import build_for, recipe_for

        torch.manual_seed(1)
        recipe = recipe_for(kind, settings)
        self.model, self.fused = build_for(recipe, VOCAB).train(), nullcontext
        tokens = np.random.default_rng(1).integers(1, VOCAB, 100_000).astype(np.uint16)
        if hasattr(self.model, "nats"):
            from chainrule.train.optimizers import Optimizers
            from chainrule.train.precision import choose_precision

            from chainrule.text.batches import Windows

            length = settings.get("train.length", CONTEXT)
            self.loss, self.order = self.model.nats, Windows(tokens, TARGETS // length, length, 1)
        else:
            from chainrule import kernels
            from chainrule.device import choose_precision, keep_freed_memory
            from chainrule.kernels.cpu import layers
            from chainrule.tasks.lm import LM
            from chainrule.text.corpus import Split
            from chainrule.training.param_groups import Optimizers

            keep_freed_memory()
            corpus: Any = SimpleNamespace(splits={"train": Split(tokens, len(tokens), 1, "")})
            self.loss, self.order = self.model.loss, LM.order(self.model, corpus, recipe.train)
            self.fused = partial(kernels.in_training, kind == "gpt" and layers.available())    # as in a long run
        self.optimizers = Optimizers(self.model, recipe.train)
        self.precision = choose_precision(recipe.train.precision, torch.device("cpu"))

    def take(self, clock: Callable[[], float]) -> float:
        """Seconds of a step."""
        began = clock()
        for step in range(STEPS):
            with self.precision(), self.fused():
                nats, count, *_ = self.loss(self.order.at(step))
            (nats / count).backward()
            self.optimizers.step()
            for parameter in self.model.parameters():
                parameter.grad = None
        return (clock() - began) / STEPS


def serve(kind: str, settings: dict[str, Any], wall: bool) -> None:
    """Takes a turn for each line of standard input."""
    steps, clock = Steps(kind, settings), time.perf_counter if wall else time.process_time
    steps.take(clock)
    print(sum(parameter.numel() for parameter in steps.model.parameters()), flush=True)
    for _ in sys.stdin:
        print(steps.take(clock), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve[0], json.loads(args.serve[1]), args.wall)
    children, parameters = {}, {}
    for name, (tree, kind, settings) in models(args.width, args.before, args.precision).items():
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(args.threads)}
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", kind, json.dumps(settings)]
        command += ["--wall"] * args.wall
        children[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                          env=environment)
        parameters[name] = int(children[name].stdout.readline())
    turns: dict[str, list[float]] = {name: [] for name in children}
    for _ in range(args.turns):
        for name, child in children.items():
            child.stdin.write("\n")
            child.stdin.flush()
            turns[name].append(float(child.stdout.readline()))
    for child in children.values():
        child.stdin.close()
        child.wait()
    cost = {name: statistics.median(some) for name, some in turns.items()}
    ratios = {f"{one} over {other}": round(cost[other] / cost[one], 2) for one, other in (
        ("dropped", "before"), ("plain", "before"), ("plain", "lstm"), ("before", "lstm before")
    ) if one in cost and other in cost}
    print(json.dumps({"milliseconds": {name: round(1000 * value, 1) for name, value in cost.items()}, "speed": ratios,
                      "parameters": parameters, "threads": args.threads}))
    return None


if __name__ == "__main__":
    main()

"""An induction head in a small GPT: trained on the built-in `repeats`, where half of each line copies the other half.

    python benchmarks/quality/induction.py [--steps 1500] [--seed 1] [--out runs/induction]

Prints a JSON line: the bits per character against the language's entropy, and the scores of every head by
inference/analysis/head_scores.py, before training and after it.
"""

import json
from argparse import ArgumentParser
from pathlib import Path

import torch

import chainrule
from chainrule.run import Run
from chainrule.tasks import build_for
from chainrule.text.synthetic import language
from chainrule.viewer.subject import Subject
from chainrule.viewer.views import find_view

SETTINGS = {
    "text.tokenizer": "characters", "model.layers": 2, "model.width": 64, "model.heads": 4, "model.context": 64,
    "train.tokens": 2048, "train.lr": 0.005, "train.evaluate": 0,
}


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="runs/induction")
    args = parser.parse_args()
    spoken = language("repeats")
    run = chainrule.train("repeats", kind="gpt", out=Path(args.out), overwrite=True,
                          settings={**SETTINGS, "train.steps": args.steps, "train.seed": args.seed})
    text = spoken.text(200, seed=99)
    torch.manual_seed(args.seed)
    untrained = Run(run.path, run.recipe, run.tokenizer, build_for(run.recipe, len(run.tokenizer)).eval(), {})
    print(json.dumps({
        "steps": args.steps, "seed": args.seed, "bits_per_byte": round(run.result["bits_per_byte"], 4),
        "entropy": round(spoken.bits_per_character, 4),
        "seconds": run.result["train_seconds"], "heads": heads(run, text), "untrained": heads(untrained, text),
    }))


def heads(run: Run, text: str) -> list[dict]:
    """The name and the scores of each head, rounded."""
    table = find_view("attention").table([Subject("gpt", run)], text, {})
    return [{**head, "scores": {name: score and round(score, 3) for name, score in head["scores"].items()}}
            for head in table.values["heads"]]


if __name__ == "__main__":
    main()

"""Loss curves of training in float8 and in bfloat16: the difference between them beside that between seeds.

    python benchmarks/quality/float8_curves.py text.txt [--kind gpt] [--steps 240] [--seeds 1 2] [--vocab 8192]
                                               [KEY=VALUE …]
    python benchmarks/quality/float8_curves.py text.txt --emulated --seeds 1 2 3 model.layers=3 model.width=96
                                               [KEY=VALUE …]

Trains the kind (12 x 768, dropout 0, rows of 1,024 tokens, 65,536 in a step) in both precisions with each seed on the
same steps of the text, whose last twentieth is held out. JSON lines: of each run the training loss in eight parts of
it, the loss on the held-out text, and tokens a second of the whole run; then the differences. Equal curves: float8
differs from bfloat16 with the same seed by no more than the seeds do among themselves. If it is stopped (Ctrl-C or
SIGTERM), the last run is left out, and the seeds that are done are compared. With `--emulated`, on a CPU: numbers
rounded to float8 wherever that is possible, also at the output and for small weights, against float32.
"""

import argparse
import json
import time
from itertools import product
from typing import Any

import torch

from chainrule.device import Precision, choose_precision
from chainrule.kernels import float8_layers
from chainrule.layers import cross_entropy
from chainrule.progress import set_quiet
from chainrule.tasks import build_for, find_task, recipe_for
from chainrule.training import trainer
from chainrule.training.log import Log
from chainrule.training.pipeline import train_model

PARTS = 8
SETTINGS = {
    "model.dropout": 0.0, "text.tokenizer": "bpe", "text.held_out": 0.05, "train.tokens": 65_536,
    "train.length": 1024, "train.warmup": 0.1,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text")
    parser.add_argument("settings", nargs="*", help="more settings, key=value")
    parser.add_argument("--kind", default="gpt")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--emulated", action="store_true", help="on a CPU, compared with float32")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_intermixed_args()
    base = "float32" if args.emulated else "bfloat16"
    if args.emulated:
        emulate(args)
    set_quiet(True)
    corpus, losses = None, dict[tuple[str, int], float]()
    for seed, precision in product(args.seeds, (base, "float8")):
        recipe = recipe_of(args, precision, seed)
        if corpus is None:                                  # the same for all
            corpus = find_task("lm").prepare(recipe, [args.text])
        facts = curve(args, recipe, corpus)
        if facts is None:
            break
        losses[precision, seed] = facts["nats"]
        print(json.dumps({"precision": precision, "seed": seed, **facts}), flush=True)
    print(json.dumps(differences(losses, base)))


def differences(losses: dict[tuple[str, int], float], base: str) -> dict[str, Any]:
    """Between the precisions, and between the first seed and the others; of the seeds with both."""
    seeds = [seed for precision, seed in losses if precision == "float8"]
    return {
        f"float8_minus_{base}": [round(losses["float8", seed] - losses[base, seed], 4) for seed in seeds],
        "between_seeds": {
            precision: [round(losses[precision, seed] - losses[precision, seeds[0]], 4) for seed in seeds[1:]]
            for precision in (base, "float8")
        },
    }


def emulate(args: argparse.Namespace) -> None:
    args.device, cpu = "cpu", torch.device("cpu")
    both = {"float32": choose_precision("float32", cpu), "float8": Precision("cpu", torch.float32, "", float8=True)}
    vars(trainer)["choose_precision"] = lambda name, device: both[name]
    float8_layers.MIN_WEIGHT = cross_entropy.MIN_FUSED_VOCAB = 1
    cross_entropy.FUSED_DEVICES.add("cpu")
    cross_entropy.VOCAB_MULTIPLE["cpu"] = 16


def recipe_of(args: argparse.Namespace, precision: str, seed: int) -> Any:
    sizes = {"model.layers": 12, "model.width": 768, "model.heads": 12, "model.context": 1024}
    given = {**sizes, **SETTINGS, "text.vocab": args.vocab, "train.steps": args.steps,
             "train.evaluate": args.steps // 2, "train.seed": seed, "train.precision": precision}
    return recipe_for(args.kind, given | dict(setting.split("=", 1) for setting in args.settings))


def curve(args: argparse.Namespace, recipe: Any, corpus: Any) -> dict[str, Any] | None:
    """Trains one model; None: it was stopped, perhaps in its last evaluation."""
    torch.manual_seed(recipe.train.seed)
    model = build_for(recipe, len(corpus.tokenizer), ()).to(args.device)
    log, began = Log(), time.monotonic()
    finished, seconds = train_model(model, corpus, recipe, log).finished, time.monotonic() - began
    evaluation = log.last("evaluation")
    if not finished or evaluation is None or evaluation["step"] + args.steps // 2 <= args.steps:
        return None
    steps = [(record["step"], record["nats_per_token"]) for record in log.records if record["event"] == "step"]
    parts = [[nats for step, nats in steps if part / PARTS < step / args.steps <= (part + 1) / PARTS]
             for part in range(PARTS)]
    return {
        "nats": round(evaluation["nats"], 5), "training": [round(sum(some) / len(some), 4) for some in parts if some],
        "tokens_per_second": round(args.steps * recipe.train.tokens / seconds), "seconds": round(seconds, 1),
        "vocabulary": len(corpus.tokenizer),
    }  # fmt: skip


if __name__ == "__main__":
    main()

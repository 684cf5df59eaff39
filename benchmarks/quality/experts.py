"""Mixture of experts against the dense model of the same active size, on one GPU: bits per byte, and tokens a second.

    python benchmarks/quality/experts.py quality train.txt valid.txt [--tokens 100e6] [--experts 16] [--seeds 1 2 3]
    python benchmarks/quality/experts.py speed [--rows 128] [--seconds 8] [--compile]

`quality` trains GPTs of 6 x 512 on bytes (Muon, as recipes/enwik8-gpt.toml) with `chainrule train`: for each seed a
dense one and one whose feed-forward layers are experts, 2 of them for each token, with as many active parameters, on
equal tokens; and once more a dense one for the seconds that the experts took. With --parallel 6 all run at the same
time, and seconds say nothing. `speed` is the trainer's own step on random tokens: 12 x 768, a vocabulary of 50,257,
2 experts of 8, against the dense model. Both print JSON lines. Active parameters are equal but for the router: two
experts have half of the dense layer's hidden units each.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from chainrule import kernels
from chainrule.device import choose_precision
from chainrule.flops import idle_weights
from chainrule.kernels.ops import compiled
from chainrule.model import Batch
from chainrule.models import build
from chainrule.recipe import Gradient
from chainrule.training.log import spent
from chainrule.training.param_groups import Optimizers
from chainrule.training.pipeline import recipe_for
from chainrule.training.step import Step

MODEL = {"model.layers": 6, "model.width": 512, "model.heads": 4, "model.context": 512}
TRAIN = {
    "text.tokenizer": "bytes", "train.tokens": 65536, "train.lr": 3e-3, "train.weight_decay": 0.1,
    "train.warmup": 0.01, "train.schedule": "linear", "train.final_lr": 0.0, "train.evaluate": 0,
}  # fmt: skip
VOCAB = 50_257


def quality(args: argparse.Namespace) -> None:
    mixture = {"model.experts": args.experts, "model.active": args.active}
    budget = {"train.total_tokens": int(args.tokens)}
    jobs = [(name, {**extra, **budget}, seed) for seed in args.seeds for name, extra in
            (("dense", {}), ("experts", mixture))]
    with TemporaryDirectory() as folder, ThreadPoolExecutor(args.parallel) as pool:
        found = list(pool.map(lambda job: trained(args, Path(folder), *job), jobs))
        if args.parallel == 1 and not args.equal_tokens_only:
            seconds = statistics.mean(one["seconds"] for one in found if one["model"] == "experts")
            last = trained(args, Path(folder), "dense, equal seconds", {"train.minutes": seconds / 60}, args.seeds[0])
            first = next(one for one in found if one["model"] == "experts")
            say(difference_at_equal_seconds=last["bits_per_byte"] - first["bits_per_byte"])
    pairs = zip(found[::2], found[1::2], strict=True)
    gains = [dense["bits_per_byte"] - experts["bits_per_byte"] for dense, experts in pairs]
    spread = statistics.stdev(gains) if len(gains) > 1 else None
    say(gains=gains, mean_gain=statistics.mean(gains), standard_deviation=spread, bar=0.02, goal=0.04)


def trained(args: argparse.Namespace, folder: Path, name: str, extra: dict[str, Any], seed: int) -> dict[str, Any]:
    """One run of `chainrule train`: its bits per byte on the validation text, and its seconds of training."""
    out = folder / f"{name}-{seed}".replace(", ", "-").replace(" ", "-")
    settings = {**MODEL, **TRAIN, **extra, "train.seed": seed}
    words = [f"{key}={value}" for key, value in settings.items()] + list(args.setting)
    command = ["-m", "chainrule", "train", args.train, "--valid", args.valid, "--kind", "gpt", "--device", args.device]
    began = time.monotonic()
    done = subprocess.run([sys.executable, *command, "--out", out, "--json", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}, seed {seed}: {done.stderr[-2000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    tokens, seconds = spent(records, 0)
    last = next((one for one in reversed(records) if one["event"] == "experts"), {})
    shares = [share for layer in last.get("expert_shares", []) for share in layer]
    return say(
        model=name, seed=seed, bits_per_byte=result["bits_per_byte"], tokens=tokens, seconds=round(seconds, 1),
        wall_seconds=round(time.monotonic() - began, 1), parameters=result.get("parameters"),
        load_balancing_loss=last.get("load_balancing_loss"), router_z_loss=last.get("router_z_loss"),
        least_share=min(shares, default=None), greatest_share=max(shares, default=None),
    )  # fmt: skip


def speed(args: argparse.Namespace) -> None:
    mixture = {"model.experts": args.experts, "model.active": args.active}
    sizes = {"model.layers": 12, "model.width": args.width, "model.heads": args.width // 128,
             "model.context": args.length, "model.tied": True}
    rates = {}
    for name, extra in (("dense", {}), ("experts", mixture)):
        torch.manual_seed(1)
        recipe = recipe_for("gpt", {**sizes, **extra, **dict(word.split("=", 1) for word in args.setting)})
        with torch.device(args.device):
            model = build("gpt", recipe.model, args.vocab).train()
        rates[name] = measured(model, recipe.train, args)
        parameters = sum(weight.numel() for weight in model.parameters())
        memory = torch.cuda.max_memory_allocated() / 1e9 if args.device == "cuda" else None
        say(model=name, tokens_per_second=round(rates[name]), parameters=parameters, gigabytes=memory,
            active_parameters=parameters - idle_weights(model), compiled=args.compile, rows=args.rows)
        del model
        torch.compiler.reset()
        if args.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    say(ratio=rates["experts"] / rates["dense"], bar=0.6, goal=0.8)


def measured(model: Any, settings: Gradient, args: argparse.Namespace) -> float:
    """Tokens a second of the trainer's step, after a warm-up."""
    device = torch.device(args.device)
    micro = args.micro_batch or args.rows
    step = Step(model, Optimizers(model, settings), choose_precision("auto", device), 1.0, micro, False)
    step.fused = args.device == "cuda" and kernels.available()
    step.loss = compiled(model.loss) if args.compile else model.loss
    rows = torch.randint(args.vocab, (args.rows, args.length + 1), device=device)
    batch, steps = Batch(rows[:, :-1], rows[:, 1:]), 0
    for _ in range(4):
        step.take(batch, None)
    float(step.totals.sum())                               # waits for the GPU
    began = time.monotonic()
    while time.monotonic() - began < args.seconds:
        step.take(batch, None)
        float(step.totals.sum())
        steps += 1
    return steps * batch.tokens.numel() / (time.monotonic() - began)


def say(**facts: Any) -> dict[str, Any]:
    print(json.dumps({name: fact for name, fact in facts.items() if fact is not None}), flush=True)
    return facts


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one, other = commands.add_parser("quality"), commands.add_parser("speed")
    one.add_argument("train", help="text to learn from")
    one.add_argument("valid", help="text to evaluate on")
    one.add_argument("--tokens", type=float, default=100e6)
    one.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    one.add_argument("--parallel", type=int, default=1, help="runs at the same time")
    one.add_argument("--equal-tokens-only", action="store_true", help="without the dense run of equal seconds")
    other.add_argument("--rows", type=int, default=128)
    other.add_argument("--micro-batch", type=int, help="rows in a micro-batch; default: all")
    other.add_argument("--length", type=int, default=1024)
    other.add_argument("--width", type=int, default=768)
    other.add_argument("--vocab", type=int, default=VOCAB)
    other.add_argument("--seconds", type=float, default=8.0)
    other.add_argument("--compile", action="store_true")
    for parser_of, experts in ((one, 16), (other, 8)):
        parser_of.add_argument("--experts", type=int, default=experts)
        parser_of.add_argument("--active", type=int, default=2)
        parser_of.add_argument("--device", default="cuda")
        parser_of.add_argument("--setting", nargs="*", default=[], help="more settings, key=value")
    args = parser.parse_args(words)
    {"quality": quality, "speed": speed}[args.command](args)


if __name__ == "__main__":
    main()

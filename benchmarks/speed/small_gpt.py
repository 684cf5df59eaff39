"""Training speed of a small GPT on a CPU, compared with a plain one as in nanoGPT: targets a second, time to 1.88 nats.

    python benchmarks/speed/small_gpt.py [speed|time] [--turns 5] [--one-core] [--json]

Both have 4 layers of 4 heads, 128 wide, 64 tokens of context, 65 characters. *speed*: the trainer's own step and the
plain loop, in turn in one process. *time*: from process start until the last tenth of tinyshakespeare costs at most
1.88 nats a character; here `chainrule train --recipe recipes/shakespeare-cpu.toml` from text to finished run, there
nanoGPT's recipe for a CPU (2,000 steps of 12 rows, evaluated on 20 random batches every 250 steps) from tokens on disk.
On a busy machine use --one-core: one thread, measured by its CPU time.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chainrule  # noqa: F401 (before torch, since it sets how long torch's threads spin: the same for both sides)

# isort: split
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

LAYERS, HEADS, WIDTH, CONTEXT, ROWS = 4, 4, 128, 64, 12
STEPS, WARMUP, LR, EVALUATE, BATCHES = 2000, 100, 1e-3, 250, 20
GOAL = 1.88
BLOCK = 40    # steps between turns
RECIPE = Path(__file__).parents[2] / "recipes" / "shakespeare-cpu.toml"


# The plain model and its loop


class PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.norms[0](x)).split(WIDTH, 2)
        heads = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        found = scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).contiguous().view(x.shape)
        x = x + self.out(found)
        return x + self.down(self.activation(self.up(self.norms[1](x))))


class Plain(nn.Module):
    def __init__(self, vocab: int):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(PlainBlock() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, vocab, bias=False)
        self.output.weight = self.words.weight
        for name, weight in self.named_parameters():
            back = ".out." in name or ".down." in name
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * LAYERS) if back else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.output(self.norm(self.blocks(x)))


def nats(model: Plain, batch: tuple[Tensor, Tensor]) -> Tensor:
    return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def draw(tokens: Any) -> tuple[Tensor, Tensor]:
    """Rows from anywhere in the text."""
    places = torch.randint(len(tokens) - CONTEXT, (ROWS,)).tolist()
    rows = [torch.from_numpy(tokens[place : place + CONTEXT + 1].astype(np.int64)) for place in places]
    return torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])


def make_optimizer(model: Plain, fused: bool) -> torch.optim.AdamW:
    weights = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.dim() >= 2], "weight_decay": 0.1},
        {"params": [weight for weight in weights if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, LR, betas=(0.9, 0.99), fused=fused)


def plain_step(model: Plain, optimizer: torch.optim.AdamW, tokens: Any) -> float:
    loss = nats(model, draw(tokens))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()    # nanoGPT reads its loss at each step


def learning_rate(step: int) -> float:
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    fallen = (step - WARMUP) / (STEPS - WARMUP)
    return 0.1 * LR + 0.9 * LR * (1 + math.cos(math.pi * fallen)) / 2


@torch.no_grad()
def evaluate(model: Plain, tokens: Any) -> float:
    return statistics.fmean(nats(model, draw(tokens)).item() for _ in range(BATCHES))


@torch.no_grad()
def whole(model: Plain, tokens: Any) -> float:
    """Nats of every token, by windows that overlap by half, as `chainrule eval` has it."""
    ends = np.append(np.arange(CONTEXT, len(tokens) - 1, CONTEXT // 2), len(tokens) - 1)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, CONTEXT + 1)[ends - CONTEXT].astype(np.int64)
    total = 0.0
    for rows, new in zip(np.array_split(windows, 64), np.array_split(np.diff(ends, prepend=0), 64)):
        batch = torch.from_numpy(rows)
        each = cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:], reduction="none")
        total += float(each[torch.arange(CONTEXT) >= CONTEXT - torch.from_numpy(new)[:, None]].sum())
    return total / (len(tokens) - 1)


def learn_plainly(folder: Path) -> None:
    """In a process of its own: prints step and nats at every evaluation, and at last the nats of the whole text."""
    torch.manual_seed(1337)
    train, valid = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("train", "valid"))
    model = Plain(1 + int(train.max()))
    optimizer = make_optimizer(model, fused=False)
    for step in range(STEPS + 1):
        if step % EVALUATE == 0:
            evaluate(model, train)
            seen = {"step": step, "nats": evaluate(model, valid), "cpu": time.process_time()}
            print(json.dumps(seen), flush=True)
        if step < STEPS:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step)
            plain_step(model, optimizer, train)
    print(json.dumps({"whole": whole(model, valid)}), flush=True)


# Speed


def our_step(tokens: Any, precision: str) -> Callable[[], Any]:
    """The step of `chainrule train`, for a model of the same shapes and an optimizer with the same settings."""
    from chainrule.models import build
    from chainrule.text.corpus import Split
    from chainrule.training.log import Log
    from chainrule.training.pipeline import recipe_for
    from chainrule.training.trainer import Trainer

    recipe = recipe_for("gpt", {
        "model.layers": LAYERS, "model.heads": HEADS, "model.width": WIDTH, "model.context": CONTEXT,
        "model.positions": "learned", "model.norm": "layer", "model.norm_scale": True, "model.norm_embedding": False,
        "model.qk_norm": False, "model.activation": "gelu", "model.tied": True, "model.zero_init": False,
        "model.init": 0.02,
        "train.optimizer": "adamw", "train.lr": LR, "train.betas": (0.9, 0.99), "train.tokens": ROWS * CONTEXT,
        "train.steps": 1_000_000, "train.evaluate": 0, "train.precision": precision,
    })
    vocab = 1 + int(tokens.max())
    tokenizer = type("Characters", (), {"lossless": True, "__len__": lambda self: vocab})()
    corpus: Any = SimpleNamespace(
        splits={"train": Split(tokens, len(tokens), 1, "")}, tokenizer=tokenizer, task="lm"
    )
    trainer = Trainer(build("gpt", recipe.model, vocab), corpus, recipe.train, Log())
    trainer.begin()
    return trainer.one_step


def measure_speed(tokens: Any, turns: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Targets a second of each way, the median over turns; and the ratio to the plain loop in each turn."""
    def plainly(fused: bool) -> Callable[[], float]:
        model = Plain(1 + int(tokens.max()))
        optimizer = make_optimizer(model, fused)
        return lambda: plain_step(model, optimizer, tokens)

    ways = {
        "chainrule": our_step(tokens, "auto"), "chainrule, float32": our_step(tokens, "float32"),
        "plain": plainly(False), "plain, fused AdamW": plainly(True),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns + 1):
        for name, step in ways.items():
            began = clock()
            for _ in range(BLOCK):
                step()
            times[name].append((clock() - began) / BLOCK)
    times = {name: some[1:] for name, some in times.items()}    # the first turn is for warming up
    found: dict[str, Any] = {"targets_per_second": {}, "ratios": {}}
    for name, some in times.items():
        found["targets_per_second"][name] = round(ROWS * CONTEXT / statistics.median(some))
        found["ratios"][name] = sorted(theirs / ours for ours, theirs in zip(some, times["plain"]))
    return found


# Time


def process(command: list[str], cache: Path) -> Iterator[dict[str, Any]]:
    """The JSON that it prints, line by line, with the seconds since it was started; at the end also its CPU seconds."""
    began, used = time.perf_counter(), os.times()
    environment = os.environ | {"CHAINRULE_CACHE": str(cache), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            yield json.loads(line) | {"clock": time.perf_counter() - began}
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    now = os.times()
    cpu = now.children_user - used.children_user + now.children_system - used.children_system
    yield {"clock": time.perf_counter() - began, "cpu": cpu}


def time_ours(text: Path, folder: Path) -> dict[str, Any]:
    """From text to a finished run: tokenized, trained, evaluated on the whole held-out text, saved."""
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        words = ["train", str(text), "--recipe", str(RECIPE), "--device", "cpu", "--out", f"{empty}/run", "--json"]
        result, end = process([sys.executable, "-m", "chainrule", *words], Path(empty))
    return {"nats": result["nats"], **end}


def time_plainly(folder: Path) -> dict[str, Any]:
    """Until it first sees 1.88 nats; where it never does, until its last step."""
    *seen, last, _ = process([sys.executable, __file__, "--plainly", str(folder)], folder)
    return {**next((one for one in seen if one["nats"] <= GOAL), seen[-1]), "whole": last["whole"]}


def measure_time(text: Path, folder: Path, turns: int, clock: str) -> dict[str, Any]:
    ours, plain = [], []
    for _ in range(turns):
        ours.append(time_ours(text, folder))
        plain.append(time_plainly(folder))
    ratios = sorted(theirs[clock] / mine[clock] for mine, theirs in zip(ours, plain))
    return {"chainrule": ours, "plain": plain, "ratios": ratios}


# Both


def print_speed(found: dict[str, Any]) -> None:
    print(f"{'training':<24}{'targets/s':>12}{'against plain':>28}")
    for name, speed in found["targets_per_second"].items():
        print(f"{name:<24}{speed:>12,}{spread(found['ratios'][name]):>28}")


def print_time(found: dict[str, Any]) -> None:
    for mine, theirs in zip(found["chainrule"], found["plain"]):
        print(f"chainrule: {mine['nats']:.4f} nats on the whole text after {seconds_of(mine)}")
        print(f"plain:     {theirs['nats']:.4f} nats seen at step {theirs['step']} after {seconds_of(theirs)}; "
              f"{theirs['whole']:.4f} on the whole text at its end")
    print(f"chainrule is faster by {spread(found['ratios'])}")


def seconds_of(seconds: dict[str, float]) -> str:
    return f"{seconds['clock']:.1f} s, {seconds['cpu']:.1f} s of CPU"


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def prepare(text: Path, folder: Path) -> Any:
    """The characters as numbers on disk, nine tenths and one; those to train on."""
    written = text.read_text(encoding="utf-8")
    number = {character: place for place, character in enumerate(sorted(set(written)))}
    tokens = np.array([number[character] for character in written], np.uint16)
    train, valid = np.split(tokens, [int(0.9 * len(tokens))])
    np.save(folder / "train.npy", train)
    np.save(folder / "valid.npy", valid)
    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("CHAINRULE_DATA", "data")) / "tinyshakespeare" / "input.txt"
    parser.add_argument("what", nargs="?", choices=["speed", "time", "both"], default="both")
    parser.add_argument("--text", type=Path, default=default)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--one-core", action="store_true", help="one thread, by its CPU time")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    parser.add_argument("--plainly", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plainly:
        learn_plainly(args.plainly)
        return
    if args.one_core:
        torch.set_num_threads(1)
    found: dict[str, Any] = {"threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as name:
        train = prepare(args.text, Path(name))
        if args.what != "time":
            found["speed"] = measure_speed(train, args.turns, time.process_time if args.one_core else time.perf_counter)
        if args.what != "speed":
            found["time"] = measure_time(args.text, Path(name), args.turns, "cpu" if args.one_core else "clock")
    if args.json:
        print(json.dumps(found))
    elif "speed" in found:
        print_speed(found["speed"])
    if "time" in found and not args.json:
        print_time(found["time"])


if __name__ == "__main__":
    main()

"""An LSTM in training on one GPU, beside a bare loop over torch.nn.LSTM in the same run: tokens a second.

    python benchmarks/speed/lstm_training.py [--hidden 1500] [--layers 2] [--rows 20] [--length 35] [--seconds 5]
                                             [--json]

Ours is the whole trainer on a random text (streams, bfloat16, CUDA graph where it chooses one, clipping, SGD); theirs
embeds, runs cuDNN's LSTM, takes the mean cross-entropy and a plain SGD step with clipping, under the same autocast.
"""

import argparse
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from chainrule.models import build
from chainrule.training.log import Log
from chainrule.training.pipeline import recipe_for
from chainrule.training.trainer import Trainer

GPU = torch.device("cuda")
VOCAB = 10_000


class Tokenizer(SimpleNamespace):
    def __len__(self) -> int:
        return VOCAB


def ours(args: argparse.Namespace) -> float:
    given = {"model.hidden": args.hidden, "model.layers": args.layers, "model.tied": True, "model.dropout": 0.5,
             "train.batching": "streams", "train.tokens": args.rows * args.length, "train.length": args.length,
             "train.optimizer": "sgd", "train.steps": 1_000_000, "train.compile": "false"}
    recipe = recipe_for("lstm", given)
    tokens = np.random.default_rng(1).integers(VOCAB, size=4_000_000).astype(np.uint16)
    split = SimpleNamespace(tokens=tokens, bytes=len(tokens), sha256="", documents=1)
    corpus: Any = SimpleNamespace(splits={"train": split}, tokenizer=Tokenizer(lossless=False, unit="words"))
    trainer = Trainer(build("lstm", recipe.model, VOCAB).to(GPU), corpus, recipe.train, Log())
    trainer.begin()
    return tokens_per_second(trainer.one_step, args)


def theirs(args: argparse.Namespace) -> float:
    words, lstm = nn.Embedding(VOCAB, args.hidden), nn.LSTM(args.hidden, args.hidden, args.layers, dropout=0.5)
    net = nn.ModuleList([words, lstm]).to(GPU)
    bias = nn.Parameter(torch.zeros(VOCAB, device=GPU))
    optimizer = torch.optim.SGD([*net.parameters(), bias], 1.0)
    rows = torch.randint(VOCAB, (args.length + 1, args.rows), device=GPU)
    state: Any = None

    def step() -> None:
        nonlocal state
        with torch.autocast("cuda", torch.bfloat16):
            out, after = lstm(nn.functional.dropout(words(rows[:-1]), 0.5), state)
            logits = nn.functional.linear(nn.functional.dropout(out, 0.5), words.weight, bias)
            loss = cross_entropy(logits.flatten(0, 1).float(), rows[1:].flatten())
        state = tuple(part.detach() for part in after)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()

    return tokens_per_second(step, args)


def tokens_per_second(step: Any, args: argparse.Namespace) -> float:
    for _ in range(40):
        step()
    torch.cuda.synchronize()
    began, steps = time.monotonic(), 0
    while time.monotonic() - began < args.seconds:
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        steps += 20
    return steps * args.rows * args.length / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("hidden", 1500), ("layers", 2), ("rows", 20), ("length", 35)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures: dict[str, Any] = {"gpu": torch.cuda.get_device_name()}
    figures |= {"chainrule": round(ours(args)), "torch.nn.LSTM": round(theirs(args))}
    print(f"chainrule {figures['chainrule']:,} tokens/s, torch.nn.LSTM {figures['torch.nn.LSTM']:,}")
    if args.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()

"""Captions of pictures: how many of the held-out pictures of `shapes` get exactly the right caption.

    python benchmarks/quality/captions.py [--minutes M] [--seed N] [--threads N] [--out FOLDER] [--json]

A convolutional encoder is trained with a Transformer decoder by recipes/shapes-transformer.toml, for so many minutes
instead of its epochs if they are given. Captions are written by greedy search. Those that no training picture has are
also counted alone.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import chainrule
from chainrule.inference.beam import Beam
from chainrule.text.datasets import get

RECIPE = Path(__file__).parents[2] / "recipes" / "shapes-transformer.toml"


def measure(minutes: float | None, seed: int, out: Path) -> dict[str, Any]:
    settings = {"train.seed": seed} | ({} if minutes is None else {"train.minutes": minutes})
    begun, cpu = time.monotonic(), time.process_time()
    run = chainrule.train("shapes", recipe=RECIPE, out=out, settings=settings)
    spent, used = time.monotonic() - begun, time.process_time() - cpu
    result = run.evaluate("shapes:test", search=Beam(1))
    return {
        "exact": result["exact"], "exact_interval": result["exact_interval"], "pictures": result["texts"],
        **new_captions(run), "seconds": round(spent, 1), "cpu_seconds": round(used, 1), "seed": seed,
        "threads": torch.get_num_threads(),
    }


def new_captions(run: chainrule.Run) -> dict[str, Any]:
    """The share of right captions among those that training never saw."""
    splits = {split: [source.path for source in sources] for split, sources in get("shapes").items()}
    known = set(splits["train"][1].read_text().splitlines())
    truth = splits["test"][1].read_text().splitlines()
    answers = [answer["answer"] for answer in run.predict(str(splits["test"][0]), search=Beam(1))]
    right = [answer == caption for answer, caption in zip(answers, truth, strict=True) if caption not in known]
    return {"new_captions": len(right), "exact_of_new": sum(right) / max(len(right), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="folder of the run; none: a temporary one")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as temporary:
        row = measure(args.minutes, args.seed, args.out or Path(temporary) / "shapes")
    low, high = row["exact_interval"]
    print(json.dumps(row) if args.json else
          f"exact captions {row['exact']:.1%} ({low:.1%} to {high:.1%}) of {row['pictures']:,} held-out pictures; "
          f"{row['exact_of_new']:.1%} of {row['new_captions']} with a caption that training never saw; "
          f"{row['seconds']} s, {row['cpu_seconds']} s of CPU time")


if __name__ == "__main__":
    main()

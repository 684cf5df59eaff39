"""Reward against KL from the reference, on film reviews: DPO, IPO, KTO, PPO, GRPO, best-of-n and SFT on chosen answers.

    CHAINRULE_DATA=DATA python benchmarks/preferences/frontier.py --out runs/frontier
        [--stages models pairs tune picture] [--seeds 1 2 3] [--parallel 8] [--seconds S] [--results FILE]
        [--device cuda] [--size full|smoke|tiny]

The experiment of Rafailov et al. 2023, figure 2. A GPT reads film reviews (IMDB's training texts) and books; tuned on
the reviews alone it is the reference. It continues the first 2 to 8 tokens of reviews that it has not read. The true
reward is p(positive) of a classifier; of two answers to a prompt the one with the higher reward is chosen. Each method
starts from the reference, with three seeds. Several times during training the policy draws answers to held-out prompts,
whose mean true reward and KL from the reference are one point.

    models     recipes/reviews-gpt.toml, the body; imdb-gpt.toml, the classifier; imdb-reference.toml, the reference
    pairs      answers of the reference, their true rewards, the pairs
    tune       the reward model, every method, several at a time, and best-of-n
    picture    frontier.svg and table.md: of each method the reward that is reached within a budget of KL

The sizes and the methods are in frontier_experiment.py; the stages in frontier_models.py, frontier_answers.py,
frontier_tuning.py and frontier_points.py.

What a stage has made is not made again. Each point is appended to --results as it comes, as a JSON line, and no
training begins or goes on after --seconds. `--size tiny` is the whole program with tiny models on invented reviews, on
a CPU in a minute or two; `--size smoke` has the real models, hardly trained. Figures of both say nothing.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from frontier_answers import make_pairs
from frontier_experiment import DATA, SIZES, Experiment
from frontier_models import make_models
from frontier_points import by_method, picture, read_rows, table
from frontier_tuning import tune_all
from frontier_workers import alone, use_tensor_cores

from chainrule.files import write_text


def draw(here: Experiment) -> None:
    rows = read_rows(here.results)
    if not by_method(rows):
        sys.exit(f"{here.results} has no points to draw.")
    write_text(here.out / "frontier.svg", picture(rows))
    write_text(here.out / "table.md", "\n".join(table(rows)) + "\n")
    print("\n".join(table(rows)))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, pairs, points and the picture")
    parser.add_argument("--stages", nargs="+", choices=("models", "pairs", "tune", "picture"),
                        default=("models", "pairs", "tune", "picture"))
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3))
    parser.add_argument("--parallel", type=int, default=8, help="trainings at a time; 1: in this process")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no training goes on")
    parser.add_argument("--results", type=Path, help="file of JSON lines; none: points.jsonl in --out")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(words)
    if args.size != "tiny" and "CHAINRULE_DATA" not in os.environ and set(args.stages) & {"models", "pairs"}:
        parser.error(f"{DATA}; set it.")
    args.out.mkdir(parents=True, exist_ok=True)
    out, results = args.out.resolve(), (args.results or args.out / "points.jsonl").resolve()
    here = Experiment(out, SIZES[args.size], args.device, results, time.time() + args.seconds, args.parallel)
    tiny = args.size == "tiny"
    use_tensor_cores()
    if "models" in args.stages:
        make_models(here, tiny)
    if "pairs" in args.stages and not (args.out / "best-of.json").exists():
        alone(here, make_pairs, here, tiny)
    if "tune" in args.stages:
        tune_all(here, args.seeds)
    if "picture" in args.stages:
        draw(here)


if __name__ == "__main__":
    main()

"""The choice of `train.compile=auto` and `train.graph=auto`, beside every alternative in the same run, for each recipe.

    python benchmarks/defaults/choices.py [RECIPE …] [--ways auto eager graph] [--seconds 4] [--warm 12] [--data DIR]
                                          [--profile] [--cold]

A line of JSON for each way of running the steps (auto, eager, graph, compiled, compiled-graph): targets a second once
all shapes have been met, the seconds until then, and from both the rate of the recipe's whole training; then a line
that says how far `auto` is from the best. Before that, a run that is not counted meets all kernels for the first time,
since a process compiles them only once; its seconds are printed (`--cold` leaves it out). RECIPE is a name in recipes/,
a file, or `mask` (an encoder with its default settings); all of recipes/ and `mask` by default. Where DIR
($CHAINRULE_DATA) lacks the recipe's data, random text of its shape is used. Recipes that start from a run (--from)
begin from random weights, in the size of the recipe named there. `--profile` adds the kernels of a step: how many, how
long they run, and which take longest.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chainrule.api import read_toml
from chainrule.device import choose_device
from chainrule.errors import UserError
from chainrule.recipe import Recipe
from chainrule.settings import flatten
from chainrule.tasks import build_for, find_task, recipe_for
from chainrule.training.interrupt import Stop
from chainrule.training.log import Log
from chainrule.training.trainer import Trainer

RECIPES = Path(__file__).parents[2] / "recipes"
WAYS = {
    "auto": ("auto", "auto"), "eager": ("false", "false"), "graph": ("false", "true"),
    "compiled": ("true", "false"), "compiled-graph": ("true", "true"),
}
SETTLED = 60          # steps without a new shape or a new graph, after which it is
SLOW = 0.2            # seconds: slower steps before that are listed
PROFILED = 4          # steps
LONGEST = 12          # kernels that are named

# The recipe from which a recipe starts: of its model and of its vocabulary
BASES = {
    "sst2-gpt": "reviews-gpt", "imdb-gpt": "reviews-gpt", "imdb-reference": "reviews-gpt", "aeslc-gpt": "reader-gpt",
    "follows-gpt": "reader-gpt", "rte-gpt": "reader-gpt", "aeslc-transformer": "letters-transformer",
    "reader-encoder": "reader-gpt", "imdb-encoder": "reader-gpt",
}
TUNED = ("preference", "reward", "reinforce")
FILES = {
    "multi30k-transformer": ["multi30k/train.de", "multi30k/train.en"],
    "multi30k-seq2seq": ["multi30k/train.de", "multi30k/train.en"],
    "sst2-lstm": ["glue/SST-2/train.tsv"], "sst2-gpt": ["glue/SST-2/train.tsv"], "rte-gpt": ["glue/RTE/train.tsv"],
    "ewt-lstm": ["ud-english-ewt/en_ewt-ud-train.conllu"],
    "shakespeare-gpt": ["tinyshakespeare/input.txt"], "shakespeare-gpt-fast": ["tinyshakespeare/input.txt"],
    "shakespeare-lstm": ["tinyshakespeare/input.txt"], "shakespeare-cpu": ["tinyshakespeare/input.txt"],
    "ptb-lstm": ["ptb/ptb.train.txt"], "ptb-rnn": ["ptb/ptb.train.txt"], "ptb-feedforward": ["ptb/ptb.train.txt"],
}
# Of random examples: how many, and the mean number of words in each part
RANDOM = {
    "multi30k-transformer": (20_000, 12, 12), "multi30k-seq2seq": (20_000, 12, 12), "sst2-lstm": (40_000, 9),
    "sst2-gpt": (20_000, 9), "imdb-gpt": (4_000, 230), "imdb-encoder": (4_000, 230), "ewt-lstm": (8_000, 16),
    "aeslc-gpt": (6_000, 120, 5), "aeslc-transformer": (6_000, 120, 5), "follows-gpt": (8_000, 40, 12),
    "rte-gpt": (2_500, 45, 9),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["auto", "eager", "graph"])
    parser.add_argument("--seconds", type=float, default=4.0, help="timed, for each way")
    parser.add_argument("--warm", type=float, default=12.0, help="seconds, at most, before anything is timed")
    parser.add_argument("--data", default=os.environ.get("CHAINRULE_DATA", ""))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    for name in args.recipes or [*sorted(path.stem for path in RECIPES.glob("*.toml")), "mask"]:
        for line in choices(name, args):
            print(json.dumps(line), flush=True)


def choices(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What was measured of a recipe."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            recipe = read_recipe(name)
            if recipe.task in TUNED:
                raise UserError("it learns from answers of a run that is trained already")
            texts = files_of(name, recipe, Path(args.data), Path(folder))
            recipe = find_task(recipe.task).complete(recipe, texts)
            corpus = find_task(recipe.task).prepare(recipe, texts)
        except UserError as error:
            yield {"recipe": name, "left_out": str(error)}
            return
        if not args.cold:
            facts = measure(recipe, corpus, "graph" if args.device == "cuda" else "eager", 0.0, args)
            yield {"recipe": name, "first_run_seconds": facts["seconds_until_ready"], "slow_steps": facts["slow_steps"]}
        rates: dict[str, float] = {}
        for way in args.ways:
            try:
                facts = measure(recipe, corpus, way, args.seconds, args)
            except (UserError, RuntimeError) as error:
                yield {"recipe": name, "way": way, "failed": str(error).splitlines()[0][:200]}
                continue
            rates[way] = facts["whole_run"]
            yield {"recipe": name, "way": way, **facts}
        if "auto" in rates:
            best = max(rates, key=lambda way: rates[way])
            yield {"recipe": name, "auto": rates["auto"], "best": best, "share": round(rates["auto"] / rates[best], 3)}


def read_recipe(name: str) -> Recipe:
    if name == "mask":
        return recipe_for("encoder", {}, "mask")
    given = flatten(read_toml(Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"))
    if name in BASES:
        base = flatten(read_toml(RECIPES / f"{BASES[name]}.toml"))
        given = {key: base[key] for key in base if key.startswith("model.") or key == "text.vocab"} | given
    kind, task = given.pop("kind", "gpt"), given.pop("task", "lm")
    return recipe_for(kind, given, task)


def files_of(name: str, recipe: Recipe, data: Path, folder: Path) -> list[str]:
    """The recipe's own data, if they are there; else random text of the same shape."""
    files = [data / file for file in FILES.get(name, [])]
    if recipe.task == "caption":
        return ["shapes"]
    if files and all(file.exists() for file in files):
        return [str(file) for file in files]
    count, *lengths = RANDOM.get(name, (40_000, 12))
    return random_files(recipe.task, folder, count, lengths)


def random_files(task: str, folder: Path, count: int, lengths: Sequence[int]) -> list[str]:
    random = np.random.default_rng(1)
    words = random_words(random)
    columns = [random_lines(random, words, random_lengths(random, length, count)) for length in lengths]
    if task == "translate":
        paths = [folder / f"text.{side}" for side in ("xx", "yy")]
        for path, column in zip(paths, columns):
            path.write_text("\n".join(column) + "\n")
        return [str(path) for path in paths]
    if task == "tag":
        path = folder / "tags.conllu"
        path.write_text("\n".join("".join(token(*pair) for pair in enumerate(line.split(), 1)) for line in columns[0]))
    elif task == "classify":
        path = folder / "classes.tsv"
        names = ["sentence1", "sentence2"] if len(columns) > 1 else ["sentence"]
        rows = ["\t".join(row) + f"\t{len(row[0]) % 2}" for row in zip(*columns)]
        path.write_text("\n".join(["\t".join([*names, "label"]), *rows]) + "\n")
    else:
        path = folder / "text.txt"
        path.write_text("\n".join(columns[0]) + "\n")
    return [str(path)]


def token(number: int, word: str) -> str:
    """A line of CoNLL-U; the tag of a word is its last letter."""
    return "\t".join([str(number), word, word, word[-1], *"______"]) + "\n"


def random_lines(random: np.random.Generator, words: list[str], lengths: np.ndarray[Any, Any]) -> list[str]:
    drawn = iter(random.choice(words, lengths.sum(), p=ZIPF).tolist())
    return [" ".join(islice(drawn, length)) for length in lengths.tolist()]


VOCABULARY = 12_000
ZIPF = 1 / np.arange(1, VOCABULARY + 1)
ZIPF /= ZIPF.sum()


def random_words(random: np.random.Generator) -> list[str]:
    letters = np.array(list("etaoinshrdlucmfwypvbgkq"))
    made: dict[str, None] = {}
    while len(made) < VOCABULARY:
        made["".join(random.choice(letters, int(random.integers(1, 10))))] = None
    return list(made)


def random_lengths(random: np.random.Generator, mean: int, count: int) -> np.ndarray[Any, Any]:
    """Log-normal, as lengths of sentences are about."""
    return np.maximum(1, np.exp(random.normal(np.log(mean), 0.4, count))).astype(int)


def measure(recipe: Recipe, corpus: Any, way: str, timed: float, args: argparse.Namespace) -> dict[str, Any]:
    compiled, graph = WAYS[way]
    torch.manual_seed(recipe.train.seed)
    task, settings = find_task(recipe.task), replace(recipe.train, compile=compiled, graph=graph, evaluate=0)
    model = build_for(recipe, len(corpus.tokenizer), getattr(corpus, "labels", ())).to(choose_device(args.device))
    began = time.perf_counter()
    trainer = Trainer(model, task.begin(model, corpus), settings, Log(), task=task)
    trainer.begin()
    with trainer.attention():
        return time_steps(trainer, began, timed, args)


def time_steps(trainer: Trainer, began: float, timed: float, args: argparse.Namespace) -> dict[str, Any]:
    slow = warm_up(trainer, args.warm)
    before = trainer.step.report().targets                 # waits for the GPU
    ready, first = time.perf_counter() - began, trainer.number
    started = time.perf_counter()
    while time.perf_counter() - started < timed or trainer.number == first:
        one_step(trainer)
    targets = trainer.step.report().targets - before
    seconds, taken = time.perf_counter() - started, trainer.number - first
    facts = {
        "targets_per_second": round(targets / seconds), "ms_per_step": round(1000 * seconds / taken, 3),
        "whole_run": round(whole_run(trainer, ready, first, seconds / taken) * targets / taken),
        "steps": taken, "targets_per_step": round(targets / taken), "seconds_until_ready": round(ready, 1),
        "steps_until_ready": first, "slow_steps": slow, "graphs": len(trainer.runner.graphs),
        "shapes": len(trainer.runner.met), "compiled": trainer.step.loss != trainer.step.eager_loss,
        "fused": trainer.step.fused, "loader_ms": loader_ms(trainer),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 2**30, 2) if args.device == "cuda" else None,
    }
    return facts | (profile(trainer) if args.profile and args.device == "cuda" and timed else {})


def warm_up(trainer: Trainer, most: float) -> list[tuple[int, float]]:
    """Steps until nothing new comes; which of them were slow, and their seconds."""
    began = time.perf_counter()
    known, since, slow = (0, 0), 0, []
    while since < SETTLED and time.perf_counter() - began < most:
        before = time.perf_counter()
        one_step(trainer)
        if (seconds := time.perf_counter() - before) > SLOW:
            slow.append((trainer.number, round(seconds, 2)))
        met = len(trainer.runner.met), len(trainer.runner.graphs)
        since, known = (since + 1 if met == known else 0), met
    return slow


def whole_run(trainer: Trainer, ready: float, first: int, step: float) -> float:
    """Steps a second in the whole training, if it goes on as it does after `first` steps and `ready` seconds."""
    steps, seconds = trainer.budget.steps, trainer.budget.seconds
    if steps is not None:
        return steps / (ready + max(0, steps - first) * step)
    assert seconds is not None
    return (first + max(0.0, seconds - ready) / step) / seconds


def one_step(trainer: Trainer) -> None:
    trainer.sync(Stop())
    trainer.one_step()


def loader_ms(trainer: Trainer) -> float:
    """What the host needs to make a batch."""
    began = time.perf_counter()
    for step in range(20):
        trainer.loader.batch(step)
    return round(50 * (time.perf_counter() - began), 3)


def profile(trainer: Trainer) -> dict[str, Any]:
    """The kernels of a step."""
    kind = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kind.CUDA, kind.CPU]) as profiled:
        for _ in range(PROFILED):
            one_step(trainer)
        torch.cuda.synchronize()
    rows = [event for event in profiled.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
    rows.sort(key=lambda event: -event.self_device_time_total)
    longest = [[event.key[:70], round(event.self_device_time_total / 1000 / PROFILED, 3), event.count // PROFILED]
               for event in rows[:LONGEST]]
    total = sum(event.self_device_time_total for event in rows)
    return {"kernels": sum(event.count for event in rows) // PROFILED,
            "kernel_ms": round(total / 1000 / PROFILED, 3), "longest": longest}


if __name__ == "__main__":
    main()

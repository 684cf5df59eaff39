"""Are the defaults good on data that no recipe was tuned on? Each set is trained by them and by a small search.

    python benchmarks/defaults/defaults.py [--sets language,author,xpos,phonemes,gpt,lstm:plain] [--device cpu]
                                           [--jobs 2] [--seconds 270] [--only default] [--factors 0.5,2]
                                           [--threads 1] [train.compile=false …]

The sets are made of the corpora under $CHAINRULE_DATA (default_sets.py): the language of a line of Multi30k or of a
`word` of it, the book of a paragraph of Gutenberg, the sentiment of a phrase of SST-2 (`reviews`, `phrases`), the last
`letter` of a name, the syllables of a word of cmudict and its phonemes, the xpos tags of EWT; and tinyshakespeare's
characters for 300, 1,000 and 5,000 steps of each kind of language model. Every training is a JSON line as soon as it
has ended, and in the end each set is one: the default, the best of the search, the gap, whether the bar is met, and
what of the search had not ended after `--seconds` (`missing`). `--only kind=` compares the kinds of classifiers.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from default_sets import BARS, OF_LOSS, Trial, recipe_of, trials_of


def begin(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)


def train_once(trial: Trial) -> dict[str, Any]:
    """In a process of its own."""
    from chainrule.progress import set_quiet
    from chainrule.run import load, read_log
    from chainrule.training.pipeline import make_run

    began = time.monotonic()
    facts: dict[str, Any] = {"set": trial.set, "trial": trial.name, "device": trial.device}
    texts, valid = list(trial.train), list(trial.valid)
    set_quiet(True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            recipe = recipe_of(trial)
            make_run(texts, recipe, out, valid=valid, device=trial.device)
            more = {"errors": error_rate(load(out, trial.device), valid[0])} if trial.task == "translate" else {}
        except Exception as error:
            return {**facts, "error": f"{type(error).__name__}: {error}"[:300]}
        log = read_log(out)
    result = more | next(record for record in reversed(log) if record["event"] == "result")
    steps = [record["step"] for record in log if record["event"] == "step"]
    seen = [(record["step"], round(record["nats"], 4)) for record in log if record["event"] == "evaluation"]
    chosen = {name: getattr(recipe.train, name, None) for name in ("optimizer", "lr", "epochs", "tokens", "momentum")}
    chosen |= {name: getattr(recipe.model, name, None) for name in ("layers", "width", "hidden", "dropout")}
    metrics = {name: round(result[name], 5) for name in ("nats", "bits_per_byte", "accuracy", "errors")
               if isinstance(result.get(name), float)}
    return {**facts, "kind": recipe.kind, **metrics, "last_step": steps[-1] if steps else None,
            "seconds": round(time.monotonic() - began, 1),
            "chosen": {name: value for name, value in chosen.items() if value is not None},
            "evaluations": seen[:: max(1, len(seen) // 6)]}


def error_rate(run: Any, table: str) -> float:
    """Words of the target that are wrong, missing or too many, as a share of its words: for phonemes their error rate.
    The first of several targets of a source counts."""
    rows: dict[str, str] = {}
    for line in Path(table).read_text(encoding="utf-8").splitlines()[1:]:
        source, target = line.split("\t")
        rows.setdefault(source, target)
    written = [prediction["answer"].split() for prediction in run.predict(list(rows))]
    targets = [target.split() for target in rows.values()]
    return sum(map(edits, written, targets)) / sum(map(len, targets))


def edits(one: list[str], other: list[str]) -> int:
    """The edit distance (Levenshtein 1966)."""
    row = list(range(len(other) + 1))
    for place, word in enumerate(one, 1):
        left, row[0] = row[0], place
        for column, against in enumerate(other, 1):
            left, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, left + (word != against))
    return row[-1]


def distinct(trials: list[Trial]) -> list[Trial]:
    """Without trials of language models that are what is chosen anyway."""
    from chainrule.settings import flatten

    defaults = {trial.set: flatten(recipe_of(trial).as_dict()) for trial in trials
                if trial.task == "lm" and trial.name == "default"}

    def differs(trial: Trial) -> bool:
        chosen = defaults.get(trial.set)
        return chosen is None or any(str(chosen.get(name)) != str(value) for name, value in trial.settings.items())

    return [trial for trial in trials if trial.name == "default" or differs(trial)]


def order(trial: Trial) -> tuple[int, bool, int]:
    """The default first, and what takes long before what does not."""
    return trial.late, trial.name != "default", -int(trial.settings.get("train.steps", 3000))


def run_all(trials: list[Trial], jobs: int, threads: int, until: float) -> Iterator[dict[str, Any]]:
    """Results as they come; what has not ended in time is left out."""
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), begin, (threads,))
    waiting: set[Future[dict[str, Any]]] = {pool.submit(train_once, trial) for trial in trials}
    while waiting and time.monotonic() < until:
        done, waiting = wait(waiting, max(0.1, until - time.monotonic()), FIRST_COMPLETED)
        yield from (future.result() for future in done)
    for process in list(pool._processes.values()) if waiting else ():
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


def summary(trials: list[Trial], results: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each set: also where its search is not complete, or its default failed."""
    for name in dict.fromkeys(trial.set for trial in trials):
        bar = BARS.get(name, OF_LOSS)
        scores = {result["trial"]: result[bar.metric] for result in results
                  if result["set"] == name and bar.metric in result}
        line = {"summary": name, "metric": bar.metric, "trials": len(scores),
                "missing": [trial.name for trial in trials if trial.set == name and trial.name not in scores]}
        if "default" not in scores or len(scores) < 2:    # no search to compare with
            yield {**line, "met": None}
            continue
        best = bar.best(scores)
        gap = bar.gap(scores["default"], scores[best])
        chosen = next(result["chosen"] for result in results if (result["set"], result["trial"]) == (name, "default"))
        yield {**line, "default": scores["default"], "best": scores[best], "by": best, "gap": round(gap, 5),
               "bar": bar.most, "met": gap <= bar.most, "chosen": chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="language,author,xpos,phonemes,gpt,lstm,gru,rnn,feedforward")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kind", help="of the sets of examples, instead of the one that is chosen")
    parser.add_argument("--steps", default="300,1000,5000", help="of language models")
    parser.add_argument("--factors", help="of Muon's rate, for language models, instead of the whole search: 0.5,2")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--only", help="trials whose name contains this")
    parser.add_argument("settings", nargs="*", help="key=value for all trainings")
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    factors = [float(factor) for factor in (args.factors or "").split(",") if factor]
    data, steps, results = Path(os.environ["CHAINRULE_DATA"]), [int(count) for count in args.steps.split(",")], []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CHAINRULE_CACHE", str(Path(folder) / "cache"))
        trials = []
        for name in args.sets.split(","):
            trials += trials_of(name, data, Path(folder), args.device, steps, args.kind, factors)
        every = dict(word.split("=", 1) for word in args.settings)
        trials = [replace(trial, settings={**trial.settings, **every}) for trial in trials
                  if args.only is None or args.only in trial.name]
        trials = sorted(distinct(trials), key=order)
        for result in run_all(trials, args.jobs, args.threads, until):
            results.append(result)
            print(json.dumps(result), flush=True)
        for line in summary(trials, results):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())

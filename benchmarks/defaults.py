"""Are the defaults good on data that no recipe was tuned on? Each set is trained by them and by a small search.

    python benchmarks/defaults.py [--sets language,author,xpos,phonemes,gpt,lstm] [--device cpu] [--jobs 2]
                                  [--seconds 270] [--only default] [--threads 1]

The sets are made of the corpora under $CHAINRULE_DATA: the language of a line of Multi30k, the book of a paragraph of
Gutenberg, the xpos tags of EWT, the phonemes of a word of cmudict; and tinyshakespeare's characters for 300, 1,000 and
5,000 steps of each kind of language model. Every training is a JSON line as soon as it has ended, and in the end each
set is one: the default, the best of the search, and whether the bar is met. A trial that would end after `--seconds` is
left out, and said to be.
"""

import argparse
import json
import lzma
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Settings = dict[str, Any]

TRAIN, HELD_OUT = 5000, 1000      # examples of a set for classification
BOOKS = 6


@dataclass(frozen=True)
class Trial:
    """One training."""

    set: str
    name: str                         # default, or what differs from it
    kind: str
    task: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    device: str = "cpu"


@dataclass(frozen=True)
class Bar:
    metric: str
    most: float                       # by which the default may be worse
    relative: bool = False            # of a loss: as a fraction

    def gap(self, default: float, best: float) -> float:
        """How much worse the default is."""
        return default / best - 1 if self.relative else best - default


# Sets


def read(path: Path) -> str:
    return lzma.open(path, "rt", encoding="utf-8").read() if path.suffix == ".xz" else path.read_text(encoding="utf-8")


def write_rows(folder: Path, name: str, header: str, rows: list[str]) -> tuple[str, str]:
    """A table for training and one of HELD_OUT rows, drawn by a seed."""
    random.Random(1).shuffle(rows)
    rows, files = rows[: TRAIN + HELD_OUT], (folder / f"{name}.tsv", folder / f"{name}-valid.tsv")
    cut = len(rows) - min(HELD_OUT, len(rows) // 6)
    for file, some in zip(files, (rows[:cut], rows[cut:])):
        file.write_text("\n".join([header, *some]) + "\n", encoding="utf-8")
    return str(files[0]), str(files[1])


def languages(data: Path, folder: Path) -> tuple[str, str]:
    """The first five words of a line, and whether they are English or German."""
    rows = []
    for language in ("en", "de"):
        lines = read(data / "multi30k" / f"train.{language}").splitlines()
        rows += [f"{' '.join(line.split()[:5])}\t{language}" for line in lines if "\t" not in line]
    return write_rows(folder, "language", "text\tlabel", rows)


def authors(data: Path, folder: Path) -> tuple[str, str]:
    """A paragraph, and the book it is from."""
    books = re.split(r"^<\|endoftext\|>$", read(data / "gutenberg" / "valid.txt.xz"), flags=re.MULTILINE)
    rows = []
    for number, book in enumerate(sorted(books, key=len)[-BOOKS:]):
        paragraphs = [" ".join(part.split()) for part in book.split("\n\n")]
        rows += [f"{text}\tbook{number}" for text in paragraphs if 150 < len(text) < 500][:1500]
    return write_rows(folder, "author", "text\tlabel", rows)


def phonemes(data: Path, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Letters of a word to its phonemes without stress: 20,000 words, and 1,000 held out."""
    rows = []
    for line in read(data / "cmudict" / "cmudict.dict").splitlines():
        word, *sounds = line.partition("#")[0].split()
        if word.isalpha():
            rows.append((" ".join(word), re.sub(r"\d", "", " ".join(sounds))))
    random.Random(1).shuffle(rows)
    files = []
    for split, some in (("train", rows[:20_000]), ("valid", rows[20_000:21_000])):
        for side, column in (("letters", 0), ("sounds", 1)):
            files.append(folder / f"phonemes-{split}.{side}")
            files[-1].write_text("".join(row[column] + "\n" for row in some), encoding="utf-8")
    return tuple(map(str, files[:2])), tuple(map(str, files[2:]))


# Searches: what is tried beside the defaults

RATES: list[Settings] = [
    *({"train.optimizer": "muon", "train.lr": lr} for lr in (0.005, 0.01, 0.02, 0.04)),
    *({"train.optimizer": "adamw", "train.lr": lr} for lr in (1e-3, 3e-3, 1e-2)),
]
SIZES_OF: dict[str, Settings] = {
    "gpt": {"model.layers": 2, "model.width": 64, "model.heads": 2, "model.context": 64},
    "lstm": {"model.layers": 1, "model.hidden": 128},
    "gru": {"model.layers": 1, "model.hidden": 128},
    "rnn": {"model.layers": 1, "model.hidden": 128},
    "feedforward": {"model.hidden": 128, "model.embedding": 32},
}
FEW = [RATES[place] for place in (0, 1, 2, 3, 5)]
AROUND: dict[str, list[Settings]] = {
    "language": [{"train.lr": 2e-3}, {"train.optimizer": "adamw", "train.lr": 1e-3}, {"train.epochs": 10}],
    "author": [{"train.lr": 1e-2}, {"train.lr": 2.5e-3}, {"train.optimizer": "adamw", "train.lr": 3e-3},
               {"train.optimizer": "adamw", "train.lr": 1e-3}, {"train.epochs": 10}, {"model.dropout": 0.5},
               {"train.evaluate": 0}],
    "xpos": [{"train.lr": 1e-2}, {"train.optimizer": "adamw", "train.lr": 2e-3}, {"train.epochs": 10},
             {"train.evaluate": 0}, {"model.dropout": 0.3}],
    "phonemes": [{"train.lr": 1e-3}, {"train.lr": 8e-3}, {"train.epochs": 20}, {"model.dropout": 0.1},
                 {"text.tokenizer": "characters"}],
}
BARS = {
    "language": Bar("accuracy", 0.01), "author": Bar("accuracy", 0.01), "xpos": Bar("accuracy", 0.01),
    "phonemes": Bar("bleu", 1.0),
}
OF_LOSS = Bar("nats", 0.03, relative=True)


def trials_of(name: str, data: Path, folder: Path, device: str, steps: list[int], kind: str | None) -> list[Trial]:
    """The default first, then the search."""
    if name in SIZES_OF:
        text = folder / "shakespeare.txt"
        text.write_text(read(data / "tinyshakespeare" / "input.txt")[:400_000], encoding="utf-8")
        made = []
        for count in steps:
            base = {"text.tokenizer": "characters", "train.steps": count, "train.tokens": 1024, **SIZES_OF[name]}
            rates = RATES if name in ("gpt", "lstm") and count < 5000 else FEW
            made += [Trial(f"{name}-{count}", said(extra), name, "lm", (str(text),), (), {**base, **extra}, device)
                     for extra in ({}, *rates)]
        return made
    task, own, train, valid = "classify", kind or "lstm", (), ()    # type: str, str, tuple[str, ...], tuple[str, ...]
    if name in ("language", "author"):
        files = (languages if name == "language" else authors)(data, folder)
        train, valid = files[:1], files[1:]
    elif name == "xpos":
        task, files = "tag", tuple(str(data / "ud-english-ewt" / f"en_ewt-ud-{split}.conllu")
                                   for split in ("train", "dev"))
        train, valid = files[:1], files[1:]
    else:
        task, own = "translate", kind or "transformer"
        train, valid = phonemes(data, folder)
    base = {"text.tag": "xpos"} if name == "xpos" else {}
    return [Trial(name, said(extra), own, task, train, valid, {**base, **extra}, device)
            for extra in ({}, *AROUND[name])]


def said(settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "default"


# Training, each in a process of its own


def begin(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)


def train_once(trial: Trial) -> dict[str, Any]:
    import chainrule
    from chainrule.progress import set_quiet
    from chainrule.run import read_log

    began = time.monotonic()
    facts: dict[str, Any] = {"set": trial.set, "trial": trial.name, "kind": trial.kind, "device": trial.device}
    set_quiet(True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            run = chainrule.train(list(trial.train), valid=list(trial.valid), kind=trial.kind, task=trial.task, out=out,
                                  settings=trial.settings, device=trial.device)
        except Exception as error:
            return {**facts, "error": f"{type(error).__name__}: {error}"[:300]}
        log, train = read_log(out), run.recipe.train
        more = run.evaluate(list(trial.valid)) if trial.task == "translate" else {}
        result = more | next(record for record in reversed(log) if record["event"] == "result")
        steps = [record["step"] for record in log if record["event"] == "step"]
        chosen = {name: getattr(train, name) for name in ("optimizer", "lr", "epochs", "steps", "tokens", "momentum")}
        chosen |= {name: getattr(run.recipe.model, name, None) for name in ("layers", "width", "hidden", "dropout")}
        seen = [(record["step"], round(record["nats"], 4)) for record in log if record["event"] == "evaluation"]
    metrics = {name: round(result[name], 5) for name in ("nats", "bits_per_byte", "accuracy", "exact", "bleu")
               if isinstance(result.get(name), float)}
    return {**facts, **metrics, "last_step": steps[-1] if steps else None,
            "seconds": round(time.monotonic() - began, 1),
            "chosen": {name: value for name, value in chosen.items() if value is not None},
            "evaluations": seen[:: max(1, len(seen) // 8)]}


def run_all(trials: list[Trial], jobs: int, threads: int, until: float) -> Iterator[dict[str, Any]]:
    """Results as they come; what has not ended in time is left out."""
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), begin, (threads,))
    waiting: set[Future[dict[str, Any]]] = {pool.submit(train_once, trial) for trial in trials}
    while waiting and time.monotonic() < until:
        done, waiting = wait(waiting, max(0.1, until - time.monotonic()), FIRST_COMPLETED)
        yield from (future.result() for future in done)
    if waiting:
        yield {"left_out": len(waiting)}
        for process in list(pool._processes.values()):
            process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


def summary(results: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(result["set"] for result in results):
        bar = BARS.get(name, OF_LOSS)
        scores = {result["trial"]: result[bar.metric] for result in results
                  if result["set"] == name and bar.metric in result}
        if "default" not in scores or len(scores) < 2:
            continue
        best = (min if bar.relative else max)(scores, key=lambda trial: scores[trial])
        gap = bar.gap(scores["default"], scores[best])
        yield {"summary": name, "metric": bar.metric, "default": scores["default"], "best": scores[best], "by": best,
               "gap": round(gap, 5), "bar": bar.most, "met": gap <= bar.most, "trials": len(scores)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", default="language,author,xpos,phonemes,gpt,lstm,gru,rnn,feedforward")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kind", help="of the sets of examples, instead of lstm and transformer")
    parser.add_argument("--steps", default="300,1000,5000")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("settings", nargs="*", help="key=value for all trainings")
    parser.add_argument("--only", help="trials whose name contains this")
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    data, steps, results = Path(os.environ["CHAINRULE_DATA"]), [int(count) for count in args.steps.split(",")], []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("CHAINRULE_CACHE", str(Path(folder) / "cache"))
        trials = []
        for name in args.sets.split(","):
            trials += trials_of(name, data, Path(folder), args.device, steps, args.kind)
        trials = [trial for trial in trials if args.only is None or args.only in trial.name]
        every = dict(word.split("=", 1) for word in args.settings)
        trials = [replace(trial, settings={**trial.settings, **every}) for trial in trials]
        trials.sort(key=lambda trial: (trial.name != "default", trial.task == "lm"))
        for result in run_all(trials, args.jobs, args.threads, until):
            results += [result] if "set" in result else []
            print(json.dumps(result), flush=True)
    for line in summary(results):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())

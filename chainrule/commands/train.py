"""`chainrule train`: trains a model, then prints its result and what to try next."""

import math
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chainrule.api import default_out, threads_for, training_recipe
from chainrule.errors import UserError
from chainrule.files import write_text
from chainrule.preferences.curves import read_curves
from chainrule.progress import say, speaks
from chainrule.recipe import Recipe
from chainrule.run import CURVES, read_log
from chainrule.tasks import find_task
from chainrule.training.pipeline import RunResult, make_run
from chainrule.viewer.views.preferences import training_page

INTERVAL = 2.0    # seconds between two versions of a page of curves, at least

REWARDED = "reinforce"
LOOK = "look {run}"    # in a browser: every view that fits it
OF_VECTORS = ("eval {run} QUESTIONS", "export {run} vectors.txt --to word2vec")


def train_command(args: Namespace) -> dict[str, Any]:
    settings = args.settings
    if args.reward is not None:
        if args.task not in (None, REWARDED) or (args.task is None and args.recipe is None):
            raise UserError(f"--reward {args.reward} is for --task {REWARDED}; --task {args.task or 'lm'} has none.")
        settings = {**settings, "train.reward": args.reward}
    with threads_for(args.minutes, args.device):
        recipe = training_recipe(
            args.text, kind=args.kind, task=args.task, base=args.base, recipe=args.recipe, valid=args.valid,
            minutes=args.minutes, settings=settings, device=args.device, out=args.out,
        )
        out = Path(args.out) if args.out else default_out(recipe.kind, args.text)
        page = CurvesPage(out)
        made = make_run(
            args.text, recipe, out, valid=args.valid, test=args.test, overwrite=args.overwrite, device=args.device,
            observe=page.observe,
        )
    page.finish(made)
    if not args.json and speaks():
        print_result(made, next_for(recipe))
    return {"run": str(made.path), "interrupted": made.interrupted, "finished": made.finished, **result_of(made)}


class CurvesPage:
    """A page of the curves of a training on preferences or rewards, in the run's folder: curves.html. It is written
    again and again while training goes on, and reads itself again until it has ended."""

    def __init__(self, out: Path):
        self.file, self.name = out / CURVES, out.name
        self.records: list[Mapping[str, Any]] = []
        self.written = -math.inf

    def observe(self, model: Any, record: Mapping[str, Any]) -> None:
        self.records.append(record)
        now = time.monotonic()
        if now - self.written < INTERVAL or record["event"] != "step" or not speaks() or not read_curves([record]):
            return
        if self.written == -math.inf:
            say(f"{self.file} shows the curves, and reads itself again while training goes on")
        self.written = now
        self._write(self.records, ended=False)

    def finish(self, made: RunResult) -> None:
        """The whole log, in which an interruption does not show."""
        if self.written > -math.inf:
            self._write(read_log(made.path) or self.records, ended=True)

    def _write(self, records: Sequence[Mapping[str, Any]], *, ended: bool) -> None:
        """A disk that is full must not end the training of which this is only a picture."""
        with suppress(OSError, UserError):
            write_text(self.file, training_page(self.name, records, ended=ended))


def next_for(recipe: Recipe) -> str:
    """Commands to try with the run that was made."""
    task = find_task(recipe.task)
    commands = OF_VECTORS if task.model_class(recipe.kind).learns_by == "pairs" else task.next_commands
    return "\n  chainrule ".join(["Try next:", *commands, LOOK])


def result_of(made: RunResult) -> Mapping[str, Any]:
    return {name: value for name, value in (made.result or {}).items() if name not in ("time", "event", "elapsed")}


def print_result(made: RunResult, then_try: str) -> None:
    if made.interrupted:
        then = f"`chainrule eval {made.path} TEXT` evaluates it" if made.finished else "the same command resumes it"
        say(f"interrupted: {made.path} holds the model as it is now; {then}.")
        return
    if made.before:
        say(f"{made.path} exists already, by the same recipe on the same text; --overwrite trains it again.")
    print(f"{made.path}: {metrics_line(result_of(made), 'held-out tokens')}")
    say(then_try.format(run=made.path))


OF_TASKS = ("exact", "accuracy", "known_accuracy", "unknown_accuracy", "f1", "entity_f1", "bleu", "chrf", "rouge_l")


def _of_task(result: Mapping[str, Any], name: str) -> str:
    """A metric with its confidence interval; fractions in per cent."""
    low, high = result[f"{name}_interval"]
    scale = 1.0 if name in ("bleu", "chrf", "rouge_l") else 100.0
    return f"{scale * result[name]:.2f} ({scale * low:.2f}–{scale * high:.2f})"


def other_metrics(result: Mapping[str, Any]) -> list[str]:
    """Metrics with a confidence interval that only their task knows."""
    names = [name.removesuffix("_interval") for name in result if name.endswith("_interval")]
    return [name for name in names if name not in (*OF_TASKS, "bits_per_byte") and result.get(name) is not None]


def metrics_line(result: Mapping[str, Any], what: str = "tokens") -> str:
    """The metrics in one line, or why there are none."""
    words = [f"{name.replace('_', ' ')} {_of_task(result, name)}" for name in OF_TASKS if result.get(name) is not None]
    words += [f"{name.replace('_', ' ')} {result[name]:.4f}" for name in other_metrics(result)]
    if result.get("bits_per_byte") is not None:
        words.append(f"{result['bits_per_byte']:.4f} bits per byte")
    if result.get("perplexity") is not None:
        words.append(f"perplexity {result['perplexity']:.4f}")
    if result.get("nats_per_pair") is not None:
        words.append(f"{result['nats_per_pair']:.4f} nats per pair, over {result['pairs']:,} held-out pairs")
    for name, said in (("tokens", what), *((name, name) for name in ("examples", "words", "frames", "texts"))):
        if name in result:
            words.append(f"over {result[name]:,} {said}")
    return "; ".join(part for part in (", ".join(words), result.get("why", "")) if part)

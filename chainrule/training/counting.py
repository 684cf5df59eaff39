"""Learning by counting: maximum likelihood in one round (n-grams), or by EM in many (Baum–Welch, for HMMs).

A round collects statistics over the whole text (the E step) and updates the model (the M step). It logs the loss of the
text *before* its update, at no extra cost. With `train.restarts` above one, each random start (seeds seed,
seed + 1, …) gets a few rounds, and the best goes on; those rounds count among its `train.steps`.

With several ranks each reads its share of the batches; statistics add up, and the first rank updates the model.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from chainrule.errors import UserError
from chainrule.model import Batch, CountingModel
from chainrule.progress import bar, short
from chainrule.recipe import Counting
from chainrule.run import Done
from chainrule.tasks.lm import LM
from chainrule.tasks.task import Task
from chainrule.text.corpus import Corpus
from chainrule.training.distributed import ALONE, Ranks, add_statistics
from chainrule.training.interrupt import Stop, catch_signals
from chainrule.training.log import Log

TRIAL_ROUNDS = 5
"""Rounds after which several random starts are compared."""


def train_by_counting(
    model: CountingModel, corpus: Corpus, settings: Counting, log: Log, done: Done,
    checkpoints: Any = None, ranks: Ranks = ALONE, task: Task = LM,
) -> Done:
    """Rounds until `settings.steps`, or until one gains too little. Ctrl-C keeps the result of the last whole round."""
    snapshot = Snapshot(model, log)
    rounds, nats = done.rounds, math.inf if done.nats is None else done.nats
    try:
        with catch_signals(ranks.distributed) as stop:
            counting = CountingRounds(model, corpus, settings, log, ranks, stop, task)
            if not rounds:
                rounds, nats = choose_start(counting, snapshot)
            gain = math.inf
            while rounds < settings.steps and gain >= settings.tolerance:
                before, nats = nats, counting.run(rounds + 1)
                gain, rounds = before - nats, rounds + 1
                if rounds < settings.steps:
                    snapshot.take(Done(rounds, False, nats))
    except KeyboardInterrupt:
        if not snapshot.state:
            raise
        del log.records[snapshot.records :]
        return snapshot.restore()
    return Done(rounds, True, nats if math.isfinite(nats) else None)


@dataclass(frozen=True)
class CountingRounds:
    """Rounds over the training text: the E step on all ranks, the M step on the first."""

    model: CountingModel
    corpus: Corpus
    settings: Counting
    log: Log
    ranks: Ranks
    stop: Stop
    task: Task

    def run(self, number: int, start: int | None = None) -> float:
        """Collects, updates and logs. Returns nats per token under the model that the round began with."""
        settings, began = self.settings, time.monotonic()
        title = f"round {number} of {settings.steps}" if settings.steps > 1 else "counting"
        if start is not None:
            title = f"start {start + 1} of {settings.restarts}, round {number}"
        statistics, total, tokens = self.collect(title)
        nats = total / tokens
        if math.isnan(nats) and (settings.steps > 1 or settings.restarts > 1):
            raise UserError("this kind learns in one round: leave out train.steps and train.restarts.")
        if self.ranks.first:
            self.model.update(statistics)
        if not math.isnan(nats):                           # else it is the only round, and the first rank has the model
            self.ranks.broadcast(self.model.state_dict().values())
        self._log(title, number, start, nats, tokens, time.monotonic() - began)
        return nats

    def collect(self, title: str) -> tuple[Any, float, int]:
        """The statistics of the whole training text, on the first rank only; its nats and targets."""
        tokens, ranks = self.corpus.splits["train"].tokens, self.ranks
        device = next(iter(self.model.state_dict().values())).device
        own, targets = None, 0
        with bar(title, len(tokens) // ranks.size, "tokens") as advance:
            for batch in islice(self._batches(), ranks.rank, None, ranks.size):
                here = int(batch.loss_mask.sum())
                part = self.model.collect(batch.to(device))
                own = part if own is None else own + part
                targets += here
                advance(here)
                if self.stop.requested:
                    break
        return self._reduce(own, targets)

    def _batches(self) -> Iterator[Batch]:
        settings = self._settings(len(self.corpus.splits["train"].tokens))
        return self.task.counting_batches(self.model, self.corpus, settings)

    def _settings(self, tokens: int) -> Counting:
        """With batches so small that each rank has one."""
        if self.ranks.size == 1:
            return self.settings
        return replace(self.settings, tokens=min(self.settings.tokens, -(-tokens // self.ranks.size)))

    def _reduce(self, own: Any, targets: int) -> tuple[Any, float, int]:
        _, requested = self.ranks.agree((), self.stop.requested)
        if requested:
            raise KeyboardInterrupt
        every = add_statistics(self.ranks, own)
        tokens = round(self.ranks.sum(targets))
        if not tokens:
            raise UserError("the training text is empty.")
        (nats,), _ = self.ranks.agree([float(every.nats) if self.ranks.first else 0.0])
        return every, nats, tokens

    def _log(self, title: str, number: int, start: int | None, nats: float, tokens: int, seconds: float) -> None:
        size = self.corpus.splits["train"].bytes
        text = self.corpus.tokenizer.lossless and self.task.running_text
        bits = nats * tokens / math.log(2) / size if text else math.nan
        line = round_line(title, nats, bits, tokens, seconds)
        self.log("round", line, start=start, round=number, nats_per_token=nats, bits_per_byte=bits,
                 tokens_per_second=round(tokens / seconds), seconds=round(seconds, 6))


def choose_start(rounds: CountingRounds, snapshot: "Snapshot") -> tuple[int, float]:
    """Leaves the model at the best of its random starts. Returns the rounds it has had, and the nats of the last."""
    settings, best = rounds.settings, math.inf
    number = min(TRIAL_ROUNDS, settings.steps) if settings.restarts > 1 else 0
    for start in range(settings.restarts):
        rounds.model.forget(torch.Generator().manual_seed(settings.seed + start))
        for place in range(number):
            nats = rounds.run(place + 1, start)
            if not snapshot.state or nats < best:  # rounds never get worse, so this ends as the best start's last
                best = nats
                snapshot.take(Done(0, False))
    if number:
        snapshot.restore()
    return number, best


def round_line(title: str, nats: float, bits: float, tokens: int, seconds: float) -> str:
    line = f"{title}: {short(tokens)} tokens in {seconds:.1f} s, {short(tokens / seconds)} tokens/s"
    if not math.isnan(nats):
        line += f", began at {nats:.4f} nats per token"
    if not math.isnan(bits):
        line += f", {bits:.4f} bits per byte"
    return line


class Snapshot:
    """The parameters after a whole round, and how much was logged by then, to go back to."""

    def __init__(self, model: CountingModel, log: Log):
        self.model, self.log = model, log
        self.state: dict[str, torch.Tensor] = {}
        self.records, self.done = 0, Done()

    def take(self, done: Done) -> None:
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.state, self.records, self.done = state, len(self.log.records), done

    def restore(self) -> Done:
        self.model.load_state_dict(self.state)
        return self.done

"""Learning by counting: collect statistics over the whole text, update, again. An n-gram takes one round, EM many.

With `train.restarts` above one, each random start (seeds seed, seed + 1, …) is given a few rounds, and the likeliest
goes on from there; those rounds are among its `train.steps`. A round says how likely the text was *before* its update,
which costs nothing extra.

Of several ranks each reads its share of the batches; statistics add, and the first rank updates the model.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.progress import bar, short
from chainrule.recipe import Counting
from chainrule.run import Done
from chainrule.tasks.buckets import Buckets
from chainrule.tasks.corpus_of_examples import ExampleCorpus
from chainrule.text.batches import stream, texts
from chainrule.text.corpus import Corpus
from chainrule.training.distributed import ALONE, Ranks, add_statistics
from chainrule.training.interrupt import Stop, heard
from chainrule.training.log import Log

AUDITION = 5
"""Rounds in which each of several random starts shows what it is worth."""


def count(
    model: Any, corpus: Corpus | ExampleCorpus, settings: Counting, log: Log, done: Done, checkpoints: Any = None,
    ranks: Ranks = ALONE,
) -> Done:
    """Rounds until `settings.steps`, or until one gains too little. Ctrl-C keeps what the last whole round gave."""
    kept = Kept(model, log)
    rounds, nats = done.rounds, math.inf if done.nats is None else done.nats
    try:
        with heard(ranks.together) as stop:
            counting = Rounds(model, corpus, settings, log, ranks, stop)
            if not rounds:
                rounds, nats = audition(counting, kept)
            gain = math.inf
            while rounds < settings.steps and gain >= settings.tolerance:
                before, nats = nats, counting.one(rounds + 1)
                gain, rounds = before - nats, rounds + 1
                if rounds < settings.steps:
                    kept.keep(Done(rounds, False, nats))
    except KeyboardInterrupt:
        if not kept.state:
            raise
        del log.records[kept.records :]
        return kept.restore()
    return Done(rounds, True, nats if math.isfinite(nats) else None)


@dataclass(frozen=True)
class Rounds:
    """Whom a round of counting concerns."""

    model: Any
    corpus: Corpus | ExampleCorpus
    settings: Counting
    log: Log
    ranks: Ranks
    stop: Stop

    def one(self, number: int, start: int | None = None) -> float:
        """Collect, update, and tell. Returns nats per token under the model that the round began with."""
        settings, began = self.settings, time.monotonic()
        title = f"round {number} of {settings.steps}" if settings.steps > 1 else "counting"
        if start is not None:
            title = f"start {start + 1} of {settings.restarts}, round {number}"
        statistics, total, tokens = self.collect(title)
        nats = total / tokens
        if math.isnan(nats) and (settings.steps > 1 or settings.restarts > 1):
            raise UserError("this kind learns all in one round: leave out train.steps and train.restarts.")
        if self.ranks.first:
            self.model.update(statistics)
        if not math.isnan(nats):                           # else this was the only round, and the first has the model
            self.ranks.begin_alike(self.model.state_dict().values())
        self._tell(title, number, start, nats, tokens, time.monotonic() - began)
        return nats

    def collect(self, title: str) -> tuple[Any, float, int]:
        """The statistics of the whole training text, which only the first rank has; its nats and targets."""
        tokens, ranks = self.corpus.splits["train"].tokens, self.ranks
        device = next(iter(self.model.state_dict().values())).device
        mine, counted = None, 0
        with bar(title, len(tokens) // ranks.size, "tokens") as advance:
            for batch in islice(self._batches(), ranks.rank, None, ranks.size):
                here = int(batch.loss_mask.sum())
                part = self.model.collect(batch.to(device))
                mine = part if mine is None else mine + part
                counted += here
                advance(here)
                if self.stop.asked:
                    break
        return self._added(mine, counted)

    def _batches(self) -> Iterator[Batch]:
        split: Any = self.corpus.splits["train"]
        settings = self._settings(len(split.tokens))
        if isinstance(self.corpus, ExampleCorpus):
            return (batch for _, batch in Buckets(split.encoded, seed=settings.seed, tokens=settings.tokens).every())
        return batches(self.model, split.tokens, settings)

    def _settings(self, tokens: int) -> Counting:
        """With batches small enough that each rank has one."""
        if self.ranks.size == 1:
            return self.settings
        return replace(self.settings, tokens=min(self.settings.tokens, -(-tokens // self.ranks.size)))

    def _added(self, mine: Any, counted: int) -> tuple[Any, float, int]:
        _, asked = self.ranks.agree((), self.stop.asked)
        if asked:
            raise KeyboardInterrupt
        every = add_statistics(self.ranks, mine)
        tokens = round(self.ranks.sum(counted))
        if not tokens:
            raise UserError("the training text holds nothing to count.")
        (nats,), _ = self.ranks.agree([float(every.nats) if self.ranks.first else 0.0])
        return every, nats, tokens

    def _tell(self, title: str, number: int, start: int | None, nats: float, tokens: int, seconds: float) -> None:
        size = self.corpus.splits["train"].bytes
        text = self.corpus.tokenizer.lossless and not isinstance(self.corpus, ExampleCorpus)
        bits = nats * tokens / math.log(2) / size if text else math.nan
        line = round_line(title, nats, bits, tokens, seconds)
        self.log("round", line, start=start, round=number, nats_per_token=nats, bits_per_byte=bits,
                 tokens_per_second=round(tokens / seconds), seconds=round(seconds, 3))


def audition(rounds: Rounds, kept: "Kept") -> tuple[int, float]:
    """Leaves the model at the likeliest of its random starts; the rounds it has had, and the nats of the last."""
    settings, best = rounds.settings, math.inf
    number = min(AUDITION, settings.steps) if settings.restarts > 1 else 0
    for start in range(settings.restarts):
        rounds.model.forget(torch.Generator().manual_seed(settings.seed + start))
        for place in range(number):
            nats = rounds.one(place + 1, start)
            if not kept.state or nats < best:  # rounds never get worse, so in the end this is the best start's last
                best = nats
                kept.keep(Done(0, False))
    if number:
        kept.restore()
    return number, best


def batches(model: Any, tokens: Any, settings: Counting) -> Iterator[Batch]:
    """One long row with as much overlap as the model can see, or rows that each begin a text where it sees for ever."""
    if settings.length is None and model.receptive_field is not None:
        return stream(tokens, max(settings.tokens, model.receptive_field + 1), model.receptive_field)
    return texts(tokens, settings.length, settings.tokens)


def round_line(title: str, nats: float, bits: float, tokens: int, seconds: float) -> str:
    line = f"{title}: {short(tokens)} tokens in {seconds:.1f} s, {short(tokens / seconds)} tokens/s"
    if not math.isnan(nats):
        line += f", began at {nats:.4f} nats per token"
    if not math.isnan(bits):
        line += f", {bits:.4f} bits per byte"
    return line


class Kept:
    """The parameters after a whole round and how much had been logged by then, to go back to."""

    def __init__(self, model: Any, log: Log):
        self.model, self.log = model, log
        self.state: dict[str, torch.Tensor] = {}
        self.records, self.done = 0, Done()

    def keep(self, done: Done) -> None:
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.state, self.records, self.done = state, len(self.log.records), done

    def restore(self) -> Done:
        self.model.load_state_dict(self.state)
        return self.done

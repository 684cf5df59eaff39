"""Learning by counting: collect statistics over the whole text, update, again. An n-gram takes one round, EM many.

With `train.restarts` above one, each random start (seeds seed, seed + 1, …) is given a few rounds, and the likeliest
goes on from there; those rounds are among its `train.steps`. A round says how likely the text was *before* its update,
which costs nothing extra.
"""

import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.progress import bar, short
from chainrule.recipe import Counting
from chainrule.run import Done
from chainrule.text.batches import stream, texts
from chainrule.text.corpus import Corpus
from chainrule.train.log import Log

AUDITION = 5
"""Rounds in which each of several random starts shows what it is worth."""


def count(model: Any, corpus: Corpus, settings: Counting, log: Log, done: Done, checkpoints: Any = None) -> Done:
    """Rounds until `settings.steps`, or until one gains too little. Ctrl-C keeps what the last whole round gave."""
    kept = Kept(model, log)
    rounds, nats = done.rounds, math.inf if done.nats is None else done.nats
    try:
        if not rounds:
            rounds, nats = audition(model, corpus, settings, log, kept)
        gain = math.inf
        while rounds < settings.steps and gain >= settings.tolerance:
            before, nats = nats, one_round(model, corpus, settings, log, rounds + 1)
            gain, rounds = before - nats, rounds + 1
            if rounds < settings.steps:
                kept.keep(Done(rounds, False, nats))
    except KeyboardInterrupt:
        if not kept.state:
            raise
        del log.records[kept.records :]
        return kept.restore()
    return Done(rounds, True, nats if math.isfinite(nats) else None)


def audition(model: Any, corpus: Corpus, settings: Counting, log: Log, kept: "Kept") -> tuple[int, float]:
    """Leaves the model at the likeliest of its random starts; the rounds it has had, and the nats of the last."""
    rounds = min(AUDITION, settings.steps) if settings.restarts > 1 else 0
    best = math.inf
    for start in range(settings.restarts):
        model.forget(torch.Generator().manual_seed(settings.seed + start))
        for number in range(rounds):
            nats = one_round(model, corpus, settings, log, number + 1, start)
            if not kept.state or nats < best:  # rounds never get worse, so in the end this is the best start's last
                best = nats
                kept.keep(Done(0, False))
    if rounds:
        kept.restore()
    return rounds, best


def one_round(model: Any, corpus: Corpus, settings: Counting, log: Log, number: int, start: int | None = None) -> float:
    """Collect, update, and tell. Returns nats per token under the model that the round began with."""
    began = time.monotonic()
    title = f"round {number} of {settings.steps}" if settings.steps > 1 else "counting"
    if start is not None:
        title = f"start {start + 1} of {settings.restarts}, round {number}"
    statistics, tokens = collect(model, corpus, settings, title)
    nats = float(statistics.nats) / tokens
    if math.isnan(nats) and (settings.steps > 1 or settings.restarts > 1):
        raise UserError("this kind learns all in one round from one start: leave out train.steps and train.restarts.")
    model.update(statistics)
    seconds = time.monotonic() - began
    bits = nats * tokens / math.log(2) / corpus.splits["train"].bytes if corpus.tokenizer.lossless else math.nan
    log("round", round_line(title, nats, bits, tokens, seconds), start=start, round=number, nats_per_token=nats,
        bits_per_byte=bits, tokens_per_second=round(tokens / seconds), seconds=round(seconds, 3))
    return nats


def collect(model: Any, corpus: Corpus, settings: Counting, title: str) -> tuple[Any, int]:
    """The statistics of the whole training text, and how many targets it has."""
    split = corpus.splits["train"]
    device = next(iter(model.state_dict().values())).device
    total, tokens = None, 0
    with bar(title, len(split.tokens), "tokens") as advance:
        for batch in batches(model, split.tokens, settings):
            counted = int(batch.counted.sum())
            part = model.collect(batch.to(device))
            total = part if total is None else total + part
            tokens += counted
            advance(counted)
    if not tokens:
        raise UserError("the training text holds nothing to count.")
    return total, tokens


def batches(model: Any, tokens: Any, settings: Counting) -> Iterator[Batch]:
    """One long row with as much overlap as the model can see, or rows that each begin a text where it sees for ever."""
    if settings.length is None and model.reach is not None:
        return stream(tokens, max(settings.tokens, model.reach + 1), model.reach)
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

"""Looks at the whole validation text while training goes on: which weights were best, and when to give up.

Ranks share its windows, if the model has a context. One that carries its state through the whole text cannot be helped,
so every rank reads it all.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chainrule import __version__
from chainrule.device import Precision
from chainrule.inference.evaluate import Result, count_parameters, evaluate
from chainrule.inference.predict import buckets, nats_by_batch
from chainrule.inference.score import stream_pieces, stride_of
from chainrule.recipe import Gradient
from chainrule.tasks.corpus_of_examples import ExampleCorpus
from chainrule.tasks.denoise import CorruptedCorpus
from chainrule.text.batches import InOrder
from chainrule.text.corpus import Corpus
from chainrule.training.data import target_of
from chainrule.training.distributed import Ranks
from chainrule.training.fsdp import forget_whole
from chainrule.training.interrupt import Stop
from chainrule.training.log import Log
from chainrule.training.schedule import Looks

EXPONENT = 700.0    # above this a perplexity is more than a float can hold
ROWS = 1 << 13      # tokens of a text to be restored that are read at once


@dataclass
class Seen:
    """What the looks have shown; plain numbers, for a checkpoint."""

    step: int = 0                 # of the last look
    share: float = 0.0            # of training that was behind it
    best: float | None = None     # nats per token of the best look
    best_step: int = 0
    worse: int = 0                # looks since the best


def evaluate_together(model: Any, corpus: Corpus | ExampleCorpus, ranks: Ranks, stop: Stop) -> Result:
    """On the validation text. Ranks leave it together, by KeyboardInterrupt, when one of them is asked to stop."""
    if isinstance(corpus, ExampleCorpus):
        return _of_answers(model, corpus, buckets(model, corpus.splits["valid"].encoded), ranks, stop)
    if isinstance(corpus, CorruptedCorpus):
        return _of_answers(model, corpus, incomplete(corpus), ranks, stop)
    if not ranks.together:
        return evaluate(model, corpus.tokenizer, corpus.splits["valid"])
    return evaluate(model, corpus.tokenizer, corpus.splits["valid"], total_nats=_shared(ranks, stop))


def _of_answers(model: Any, corpus: Corpus | ExampleCorpus, order: Any, ranks: Ranks, stop: Stop) -> Result:
    """Where the answers are not the whole text: their nats, of which each rank finds a part."""
    began, found = time.perf_counter(), []
    for piece in nats_by_batch(model, order, ranks.rank, ranks.size):
        found.append(piece)
        _leave_together(ranks, stop)
    nats = ranks.sum(math.fsum(nats for nats, _ in found))
    count = round(ranks.sum(sum(count for _, count in found)))
    mean = nats / max(count, 1)
    return Result(
        nats=mean if math.isfinite(mean) else None, tokens=count, bytes=corpus.splits["valid"].bytes,
        bits_per_byte=None, perplexity=math.exp(mean) if mean < EXPONENT else None,
        seconds=time.perf_counter() - began, parameters=count_parameters(model),
        signature=f"answers:{count}|text:{corpus.splits['valid'].sha256[:12]}|chainrule:{__version__}",
    )  # fmt: skip


def incomplete(corpus: CorruptedCorpus) -> Any:
    """The validation text, from which the same is taken at every look."""
    windows = InOrder(corpus.splits["valid"].tokens, max(1, ROWS // corpus.length), corpus.length)
    return corpus.corrupted(windows, seed=0)


def _leave_together(ranks: Ranks, stop: Stop) -> None:
    if ranks.agree((), stop.asked)[1]:
        raise KeyboardInterrupt


def _shared(ranks: Ranks, stop: Stop) -> Callable[[Any, Any, int | None], float]:
    def total_nats(model: Any, tokens: Any, stride: int | None) -> float:
        parts = 1 if stride_of(model, stride) is None else ranks.size
        nats = []
        for piece in stream_pieces(model, tokens, stride=stride, part=ranks.rank % parts, parts=parts):
            nats.append(float(piece.sum()))
            _leave_together(ranks, stop)
        mine = math.fsum(nats)
        return ranks.sum(mine) if parts > 1 else ranks.agree([mine])[0][0]

    return total_nats


class Validation:
    def __init__(
        self, model: Any, weights: dict[str, Tensor], corpus: Corpus, settings: Gradient, looks: Looks,
        precision: Precision, log: Log, ranks: Ranks,
    ):
        self.model, self.weights, self.corpus, self.settings = model, weights, corpus, settings
        self.looks, self.precision, self.log, self.ranks = looks, precision, log, ranks
        self.seen = Seen()
        self.best: dict[str, Tensor] = {}                  # weights of the best look, where they are kept

    def due(self, step: int, share: float) -> bool:
        return "valid" in self.corpus.splits and self.looks.due(step - self.seen.step, share - self.seen.share)

    def gives_up(self) -> bool:
        return self.settings.patience is not None and self.seen.worse >= self.settings.patience

    def look(self, step: int, share: float, stop: Stop) -> None:
        """Only reading can be interrupted, and then nothing was seen: what it finds is taken whole."""
        self.model.eval()
        result = None
        try:
            with stop.while_waiting(at_once=not self.ranks.together), self.precision():
                result = evaluate_together(self.model, self.corpus, self.ranks, stop)
        finally:
            self.model.train()
            forget_whole(self.model)
        if result is not None:
            self._take(result, step, share)

    def _take(self, result: Result, step: int, share: float) -> None:
        seen, nats = self.seen, math.inf if result.nats is None else result.nats
        better = seen.best is None or nats < seen.best
        if better and self.settings.keep_best:
            self.best = {name: tensor.detach().clone() for name, tensor in self.weights.items()}
        worse = Seen(step, share, seen.best, seen.best_step, seen.worse + 1)
        self.seen = Seen(step, share, nats, step) if better else worse
        line = f"step {step}: {nats:.4f} nats per {target_of(self.corpus)} of the validation text"
        line += f", {result.bits_per_byte:.4f} bits per byte" if result.bits_per_byte is not None else ""
        self.log("evaluation", line + (", the best so far" if better else ""), step=step, best=better,
                 nats=result.nats, bits_per_byte=result.bits_per_byte, seconds=round(result.seconds, 3))

    @torch.no_grad()
    def settle(self) -> None:
        """Leaves the model at the best that was looked at."""
        for name, tensor in self.best.items():
            self.weights[name].copy_(tensor)
        if self.best and self.seen.best_step != self.seen.step:
            self.log("best", f"the weights of step {self.seen.best_step} are kept", step=self.seen.best_step)

"""Evaluation on the validation split during training: which weights were best, and early stopping.

Ranks share the windows of the text if the model has a context. A model that carries its state through the whole text
cannot share the work, so every rank reads it all.
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
from chainrule.inference.evaluate import Result, count_parameters, evaluate, losses_by_batch
from chainrule.inference.score import stream_pieces, stride_of
from chainrule.model import LanguageModel, Model
from chainrule.preferences.objective import Objective, means, shown
from chainrule.recipe import Gradient
from chainrule.tasks.lm import LM
from chainrule.tasks.task import Batches, Task
from chainrule.text.corpus import Corpus
from chainrule.training.distributed import Ranks
from chainrule.training.fsdp import reshard
from chainrule.training.interrupt import Stop
from chainrule.training.log import Log
from chainrule.training.schedule import EvaluationSchedule

EXPONENT = 700.0    # above this a perplexity is more than a float can hold


@dataclass
class Evaluations:
    """What the evaluations have shown; plain numbers, for a checkpoint."""

    step: int = 0                 # of the last evaluation
    progress: float = 0.0         # at the last evaluation
    best: float | None = None     # nats per token of the best evaluation
    best_step: int = 0
    worse: int = 0                # evaluations since the best


def evaluate_together(model: Model, corpus: Corpus, ranks: Ranks, stop: Stop, task: Task = LM) -> Result:
    """On the validation split. If one rank is asked to stop, all leave together by KeyboardInterrupt."""
    batches = task.validation(model, corpus)
    if batches is not None:
        return _of_answers(model, corpus, batches, ranks, stop)
    assert isinstance(model, LanguageModel)                # whatever learns from a running text
    if not ranks.distributed or corpus.splits["valid"].packed:
        return evaluate(model, corpus.tokenizer, corpus.splits["valid"])
    return evaluate(model, corpus.tokenizer, corpus.splits["valid"], total_nats=_shared(ranks, stop))


def _of_answers(model: Model, corpus: Corpus, batches: Batches, ranks: Ranks, stop: Stop) -> Result:
    """Where the targets are not the whole text: their nats, of which each rank computes a part."""
    began, pieces = time.perf_counter(), []
    measured = model.sums if isinstance(model, Objective) else torch.zeros(0)
    counted = measured.zero_().clone()
    for piece in losses_by_batch(model, batches, ranks.rank, ranks.size):
        pieces.append(piece)
        counted = measured.clone() if piece[1] else counted    # a batch that is read again adds zero
        _leave_together(ranks, stop)
    if len(measured):
        measured.copy_(counted)
        ranks.all_reduce([measured])
    nats = ranks.sum(math.fsum(nats for nats, _ in pieces))
    count = round(ranks.sum(sum(count for _, count in pieces)))
    mean = nats / max(count, 1)
    return Result(
        nats=mean if math.isfinite(mean) else None, tokens=count, bytes=corpus.splits["valid"].bytes,
        bits_per_byte=None, perplexity=math.exp(mean) if mean < EXPONENT else None,
        seconds=time.perf_counter() - began, parameters=count_parameters(model),
        signature=f"answers:{count}|text:{corpus.splits['valid'].sha256[:12]}|chainrule:{__version__}",
    )  # fmt: skip


def _leave_together(ranks: Ranks, stop: Stop) -> None:
    if ranks.agree((), stop.requested)[1]:
        raise KeyboardInterrupt


def _shared(ranks: Ranks, stop: Stop) -> Callable[[Any, Any, int | None], float]:
    def total_nats(model: LanguageModel, tokens: Any, stride: int | None) -> float:
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
        self, model: Model, weights: dict[str, Tensor], corpus: Corpus, settings: Gradient,
        schedule: EvaluationSchedule, precision: Precision, log: Log, ranks: Ranks, task: Task = LM,
    ):
        self.model, self.weights, self.corpus, self.settings = model, weights, corpus, settings
        self.task = task
        self.schedule, self.precision, self.log, self.ranks = schedule, precision, log, ranks
        self.evaluations = Evaluations()
        self.best: dict[str, Tensor] = {}                  # weights of the best evaluation (train.keep_best)

    def due(self, step: int, progress: float) -> bool:
        last = self.evaluations
        return "valid" in self.corpus.splits and self.schedule.due(step - last.step, progress - last.progress)

    def out_of_patience(self) -> bool:
        """Early stopping: no improvement in the last `train.patience` evaluations."""
        return self.settings.patience is not None and self.evaluations.worse >= self.settings.patience

    def evaluate(self, step: int, progress: float, stop: Stop) -> None:
        """Only the reading can be interrupted, and then there is no result: a result is always recorded whole."""
        self.model.eval()
        result = None
        try:
            with stop.interruptible(at_once=not self.ranks.distributed), self.precision():
                result = evaluate_together(self.model, self.corpus, self.ranks, stop, self.task)
        finally:
            self.model.train()
            reshard(self.model)
        if result is not None:
            self._record(result, step, progress)

    def _record(self, result: Result, step: int, progress: float) -> None:
        last, nats = self.evaluations, math.inf if result.nats is None else result.nats
        better = last.best is None or nats < last.best
        if better and self.settings.keep_best:
            self.best = {name: tensor.detach().clone() for name, tensor in self.weights.items()}
        worse = Evaluations(step, progress, last.best, last.best_step, last.worse + 1)
        self.evaluations = Evaluations(step, progress, nats, step) if better else worse
        line = f"step {step}: {nats:.4f} nats per {self.task.target} of the validation text"
        line += f", {result.bits_per_byte:.4f} bits per byte" if result.bits_per_byte is not None else ""
        measured: dict[str, float] = {}
        if isinstance(self.model, Objective):
            measured = means(self.model.metrics, self.model.sums.tolist())
            line = f"step {step}: loss {nats:.4f}{shown(measured, self.model.noted)} on the validation split"
            measured = {"loss": nats, **measured}
        self.log("evaluation", line + (", the best so far" if better else ""), step=step, best=better,
                 nats=result.nats, bits_per_byte=result.bits_per_byte, seconds=round(result.seconds, 3), **measured)

    @torch.no_grad()
    def restore_best(self) -> None:
        """Leaves the model with the weights of the best evaluation."""
        for name, tensor in self.best.items():
            self.weights[name].copy_(tensor)
        if self.best and self.evaluations.best_step != self.evaluations.step:
            best = self.evaluations.best_step
            self.log("best", f"the weights of step {best} are kept", step=best)

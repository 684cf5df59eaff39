"""Scores of the rows of a corrupted text: accuracy and bits of their targets, with intervals by a bootstrap over rows.

Shapes: B rows of a batch, R of all, T tokens, N targets, V vocabulary.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.inference.forward import device_of, eval_mode
from chainrule.inference.statistics import Score, bootstrap, finite
from chainrule.model import Batch
from chainrule.progress import track

EXPONENT = 700    # nats, above which a perplexity is more than a float can hold


@torch.inference_mode()
def score_masked_rows(model: Any, batches: Any) -> Iterator[tuple[float, float, int]]:
    """For each row of a text: masked tokens that are predicted, the nats of all, and how many they are."""
    device, steps = device_of(model), math.ceil(batches.epoch)
    with eval_mode(model):
        for step in track(range(steps), "scoring", steps, "batches"):
            batch = batches.at(step).to(device)
            logits, mask = model.masked_logits(batch).float(), batch.loss_mask
            targets = batch.targets[mask]
            nats = -logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
            right = (logits.argmax(-1) == targets).float()
            row = mask.nonzero()[:, 0]
            yield from zip(*(_sums(values, row, len(mask)) for values in (right, nats)), mask.sum(1).tolist())


def _sums(values: Tensor, row: Tensor, rows: int) -> list[float]:
    summed: list[float] = values.double().new_zeros(rows).index_add(0, row, values.double()).tolist()
    return summed


@torch.inference_mode()
def score_rows(model: Any, batch: Batch) -> list[tuple[float, int]]:
    """For each row the nats of its targets, given its source and those before them; and how many they are."""
    batch = batch.to(device_of(model))
    with eval_mode(model):
        log_p, _ = model.score(batch.tokens, batch.targets.clamp(min=0), model.begin(batch))
    mask = batch.loss_mask
    return list(zip((-log_p.double() * mask).sum(1).tolist(), mask.sum(1).tolist()))


def summarise_rows(rows: NDArray[np.float64], names: tuple[str, ...]) -> dict[str, Any]:
    """(R, …) sums over the targets of each row and, last, their number: means, with intervals over the rows."""
    scores = {name: mean_over_rows(rows[:, [column, -1]]) for column, name in enumerate(names)}
    nats, bits = scores["nats"], 1 / math.log(2)
    perplexity = math.exp(nats.value) if nats.value < EXPONENT else None
    in_bits = Score(nats.value * bits, nats.low * bits, nats.high * bits).as_dict("bits_per_token")
    right = scores["right"].as_dict("accuracy") if "right" in scores else {}
    count = int(rows[:, -1].sum())
    return {**right, **in_bits, "perplexity": perplexity, "nats": finite(nats.value), "tokens": count}


def mean_over_rows(rows: NDArray[np.float64]) -> Score:
    """(R, 2) a sum and a number: the mean over all."""
    sums, counts = rows.T
    return bootstrap(lambda weights: float(weights @ sums) / max(float(weights @ counts), 1.0), len(rows))

"""Sampling of rows that each have settings of their own, and log-probabilities: from the logits of a step to tokens.

A row may still be reading its prompt: then its next token is given, and only its log-probability is of interest.

Shapes: R rows, V vocabulary, K most probable tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chainrule.inference.decoding import Values
from chainrule.inference.sampling import SamplingStrategy
from chainrule.model import BOUNDARY
from chainrule.serve.requests import TOP, Request

SAMPLED = -1    # in the place of a next token that is not given


@dataclass(frozen=True)
class Chosen:
    """The next token of each row of a step, and what is known of it."""

    tokens: Tensor                       # (R,)
    possible: Tensor                     # (R,) False where the model gives no token a probability
    log_probs: "LogProbs | None" = None


@dataclass(frozen=True)
class LogProbs:
    chosen: Tensor                       # (R,) log p of the next token, at temperature 1
    top: Tensor                          # (R, K) the highest
    ids: Tensor                          # (R, K) of these tokens

    def numbers(self) -> list[tuple[float, tuple[tuple[int, float], ...]]]:
        """For each row the number of its token, and the most probable ones: equal tokens have the same float."""
        chosen, top = self.chosen.double().tolist(), self.top.double().tolist()
        return [(p, tuple(zip(ids, some))) for p, some, ids in zip(chosen, top, self.ids.tolist())]


def log_probs_of(logits: Tensor, tokens: Tensor) -> LogProbs:
    """(R, V), (R,): computed once, as `score` does. Always for TOP tokens, since ties may be in any order."""
    log_probs = logits.float().log_softmax(-1)
    top, ids = log_probs.topk(min(TOP, log_probs.shape[-1]))
    return LogProbs(log_probs.gather(-1, tokens[:, None])[:, 0], top, ids)


class RowSamplers:
    """The decoding strategy of every row of a group, one after another, exactly as `chainrule sample` has it."""

    def __init__(self, rows: int):
        self.strategies: list[SamplingStrategy | None] = [None] * rows
        self.values: list[Values] = [{} for _ in range(rows)]

    def put(self, slot: int, request: Request) -> None:
        self.strategies[slot] = SamplingStrategy(request.sampling, request.ends, [np.asarray(request.prompt, np.int64)])
        self.values[slot] = {}

    def release(self, slot: int) -> None:
        self.strategies[slot] = None

    def choose(self, logits: Tensor, given: Sequence[int], uniform: Sequence[float], log_probs: bool) -> Chosen:
        """(R, V) -> the next token of each row: the one that is given, or a random one by the row's number."""
        tokens = torch.tensor([BOUNDARY if token == SAMPLED else token for token in given], device=logits.device)
        possible = torch.ones_like(tokens, dtype=torch.bool)
        for slot, strategy in enumerate(self.strategies):
            if strategy is not None and given[slot] == SAMPLED:
                row = logits[slot : slot + 1]
                values = self.values[slot] or strategy.begin(row)
                self.values[slot] = strategy.choose(row, values, torch.tensor([uniform[slot]], device=row.device))
                tokens[slot], possible[slot] = self.values[slot]["tokens"][0], self.values[slot]["possible"][0]
        if not log_probs:
            return Chosen(tokens, possible)
        each = [log_probs_of(logits[slot : slot + 1], tokens[slot : slot + 1]) for slot in range(len(tokens))]
        parts = (torch.cat(part) for part in zip(*((one.chosen, one.top, one.ids) for one in each)))
        return Chosen(tokens, possible, LogProbs(*parts))

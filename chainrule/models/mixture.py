"""Mixture: the mean of the next-token probabilities of several models, as one language model (an ensemble).

    p(w_t | w_1 … w_{t-1}) = Σ_m λ_m p_m(w_t | w_1 … w_{t-1}),     λ_m = 1/M, or in proportion to weights

All read the same tokens, so they share a vocabulary; kinds and sizes may differ. The models' mistakes differ too, and
the mean has less of them. State: a tuple with the state of each model.

Shapes: B rows, T tokens, V vocabulary, M models.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.model import LanguageModel, State


class Mixture(LanguageModel):
    def __init__(self, models: Sequence[LanguageModel], weights: Sequence[float] = ()):
        super().__init__()
        self.models = nn.ModuleList(models)
        self.weights = list(weights) or [1.0] * len(models)
        self.context = _least(model.context for model in models)
        fields = [model.receptive_field for model in models]
        self.receptive_field = None if None in fields else max(field for field in fields if field is not None)
        self.resets_at_boundary = all(model.resets_at_boundary for model in models)

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return tuple(model.start(rows, source, lengths) for model in self._each())

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self._mean(lambda model, own: model.step(tokens, own), state)

    def next_logits(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        return self._mean(lambda model, own: model.next_logits(tokens, own), state)

    def reserve(self, state: State, tokens: int) -> State:
        return tuple(model.reserve(own, tokens) for model, own in zip(self._each(), state, strict=True))

    def max_tokens(self, source: Tensor | None) -> int | None:
        return _least(model.max_tokens(source) for model in self._each())

    def _mean(
        self, read: Callable[[LanguageModel, State], tuple[Tensor, State]], state: State
    ) -> tuple[Tensor, State]:
        """(…, V): log of the mean of the probabilities that each model's logits say, and the states after reading."""
        logits, states = zip(*(read(*each) for each in zip(self._each(), state, strict=True)), strict=True)
        weighed = zip(logits, map(math.log, self.weights), strict=True)
        log_probs = torch.stack([each.float().log_softmax(-1) + weight for each, weight in weighed])    # (M, …, V)
        return (log_probs.logsumexp(0) - math.log(sum(self.weights))).to(logits[0].dtype), states

    def _each(self) -> list[Any]:
        return list(self.models)


def _least(limits: Iterable[int | None]) -> int | None:
    """None is no limit."""
    return min((limit for limit in limits if limit is not None), default=None)

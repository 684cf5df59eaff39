"""Uniform model: every token is equally likely, log p = -log V. The baseline, and the smallest model of the protocol.

State: an empty tensor with one row for each text. Shapes: B rows, T tokens, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from chainrule.model import Batch, LanguageModel
from chainrule.settings import Settings


@dataclass(frozen=True)
class UniformSettings(Settings):
    pass


@dataclass
class UniformStatistics:
    """No counts: the loss alone."""

    nats: float

    def __add__(self, other: "UniformStatistics") -> "UniformStatistics":
        return UniformStatistics(self.nats + other.nats)

    def tensors(self) -> list[Tensor]:
        return [torch.tensor(self.nats, dtype=torch.float64)]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "UniformStatistics":
        return cls(float(tensors[0]))


class Uniform(LanguageModel):
    learns_by = "counting"
    resets_at_boundary = True
    Settings = UniformSettings
    Statistics = UniformStatistics
    recipe: ClassVar[dict[str, Any]] = {"text.tokenizer": "words"}
    log_prob: Tensor

    def __init__(self, settings: UniformSettings, vocab: int):
        super().__init__()
        self.register_buffer("log_prob", torch.full((vocab,), -math.log(vocab)))

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        return self.log_prob.new_empty((rows, 0))

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob.expand(*tokens.shape, -1), state

    def forget(self, generator: torch.Generator) -> None:
        pass

    def collect(self, batch: Batch) -> UniformStatistics:
        return UniformStatistics(-float(self.log_prob[0]) * int(batch.loss_mask.sum()))

    def update(self, statistics: UniformStatistics) -> None:
        pass

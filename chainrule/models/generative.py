"""Generative classifier (naive Bayes and its kin): one language model for each class, and a prior over classes.

    p(class | text) ∝ p(class) · Π p(w_t | w_1 … w_{t-1}, class)

With unigram models this is naive Bayes; every counting language model will do. Each model is trained on the texts of
its class, over a shared vocabulary. Rows are `0 text`, and every token after the first is a target.

Shapes: B rows, T tokens, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.model import Batch, CountingModel, LanguageModel, Model


@dataclass(frozen=True)
class ClassStatistics:
    """The statistics of each class; they add class by class."""

    texts: Tensor                # (C,) texts of each class
    parts: tuple[Any, ...]       # the Statistics of each class; None where it had no text
    nats: float                  # -log p of the texts, each under the model of its class
    kinds: tuple[Any, ...]      # the class of each part, also where it is None

    def __add__(self, other: "ClassStatistics") -> "ClassStatistics":
        pairs = zip(self.parts, other.parts)
        parts = tuple(two if one is None else one if two is None else one + two for one, two in pairs)
        return ClassStatistics(self.texts + other.texts, parts, self.nats + other.nats, self.kinds)

    def tensors(self) -> list[Tensor]:
        """Texts and nats, the number of tensors of each part, and those tensors."""
        parts = [[] if part is None else list(part.tensors()) for part in self.parts]
        sizes, nats = torch.tensor([len(part) for part in parts]), torch.tensor(self.nats, dtype=torch.float64)
        return [self.texts, nats, sizes, *(tensor for part in parts for tensor in part)]

    def of(self, tensors: Sequence[Tensor]) -> "ClassStatistics":
        texts, nats, sizes, *rest = tensors
        every, sized = iter(rest), zip(self.kinds, sizes.tolist())
        parts = tuple(kind.of(list(islice(every, size))) if size else None for kind, size in sized)
        return ClassStatistics(texts, parts, float(nats), self.kinds)


class GenerativeClassifier(Model):
    tasks = ("classify",)
    learns_by = "counting"
    log_prior: Tensor            # (C,)

    def __init__(self, models: Sequence[LanguageModel], length_normalisation: float = 0.0):
        """`length_normalisation`: log p(class, text) is divided by the text's length to this power. 0 is Bayes' rule,
        which is much too confident on long texts, because words are less independent than the models assume; ½ is about
        calibrated. The most probable class stays the most probable."""
        super().__init__()
        self.models = nn.ModuleList(models)
        self.length_normalisation = length_normalisation
        self.register_buffer("log_prior", torch.ones(len(models)).div(len(models)).log())    # 1/C each, before training

    def forward(self, batch: Batch) -> Tensor:
        """(B, C): log p(class, text)."""
        text = _as_text(batch)
        length = text.loss_mask.sum(1).clamp(min=1)
        log_p = torch.stack([_log_p(model, text) for model in self._each()], 1)
        return (self.log_prior + log_p) / length[:, None] ** self.length_normalisation

    def _each(self) -> list[Any]:
        return list(self.models)

    # Training by counting

    def forget(self, generator: torch.Generator) -> None:
        for model in self._each():
            model.forget(generator)

    def collect(self, batch: Batch) -> ClassStatistics:
        text = _as_text(batch)
        rows = [batch.targets == number for number in range(len(self.models))]
        parts = tuple(_collect(model, text, here) for model, here in zip(self._each(), rows))
        nats = sum(float(part.nats) for part in parts if part is not None)
        kinds = tuple(model.Statistics for model in self._each())
        return ClassStatistics(torch.stack([here.sum() for here in rows]), parts, nats, kinds)

    def update(self, statistics: ClassStatistics) -> None:
        """A class without texts keeps its model; add-½ smoothing of the prior keeps it possible."""
        texts = statistics.texts + 0.5
        self.log_prior.copy_((texts / texts.sum()).log())
        for model, part in zip(self._each(), statistics.parts):
            if part is not None:
                model.update(part)


def _as_text(batch: Batch) -> Batch:
    """The texts as a language model reads them: each token but the first is a target."""
    lengths = None if batch.lengths is None else batch.lengths - 1
    return Batch(batch.tokens[:, :-1], batch.tokens[:, 1:], lengths)


def _log_p(model: LanguageModel, text: Batch) -> Tensor:
    """(B,): log p of each text."""
    scores, _ = model.score(text.tokens, text.targets, model.begin(text))
    return scores.masked_fill(~text.loss_mask, 0).sum(1)


def _collect(model: CountingModel, text: Batch, rows: Tensor) -> Any:
    """The Statistics of some rows; None where there are none."""
    return model.collect(text.map(lambda part: part[rows])) if bool(rows.any()) else None

"""A classifier without a gradient: one language model a class, and how often each class comes.

    p(class | text) ∝ p(class) · Π p(w_t | w_1 … w_{t-1}, class)

With models of order 1 this is naive Bayes; any language model will do. Each learns from the texts of its own class, by
whatever it learns by, over one vocabulary. Rows are `0 text`, and every token behind the first is foretold.

Shapes: B rows, T tokens, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.model import Batch, LanguageModel, Model


@dataclass(frozen=True)
class ClassStatistics:
    """Those of each class; they add class by class."""

    texts: Tensor                # (C,) how many there were of each class
    parts: tuple[Any, ...]       # the Statistics of each class; None where it had no text
    nats: float                  # -log p of the texts, each by the model of its class

    def __add__(self, other: "ClassStatistics") -> "ClassStatistics":
        pairs = zip(self.parts, other.parts)
        parts = tuple(two if one is None else one if two is None else one + two for one, two in pairs)
        return ClassStatistics(self.texts + other.texts, parts, self.nats + other.nats)

    def tensors(self) -> list[Tensor]:
        """Texts and nats; what the parts are and how many tensors each has; and those tensors."""
        parts = [[] if part is None else list(part.tensors()) for part in self.parts]
        kind = next((type(part) for part in self.parts if part is not None), type(None))
        name = torch.tensor(list(f"{kind.__module__}:{kind.__qualname__}".encode()))
        sizes, nats = torch.tensor([len(part) for part in parts]), torch.tensor(self.nats, dtype=torch.float64)
        return [self.texts, nats, name, sizes, *(tensor for part in parts for tensor in part)]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "ClassStatistics":
        texts, nats, name, sizes, *rest = tensors
        module, _, kind = bytes(name.tolist()).decode().partition(":")
        every = iter(rest)
        parts = [list(islice(every, size)) for size in sizes.tolist()]
        made = tuple(getattr(import_module(module), kind).of(part) if part else None for part in parts)
        return cls(texts, made, float(nats))


class GenerativeClassifier(Model):
    tasks = ("classify",)
    learns_by = "counting"
    log_prior: Tensor            # (C,)

    def __init__(self, models: Sequence[LanguageModel], calm: float = 0.0):
        """`calm`: log p of a class and its text is divided by the text's length to this power. 0 is Bayes' rule to the
        letter, which is far too sure of long texts, since their words are not as independent as the models have it; ½
        is about right. The likeliest class stays the likeliest."""
        super().__init__()
        self.models = nn.ModuleList(models)
        self.calm = calm
        self.register_buffer("log_prior", torch.full((len(models),), 1 / len(models)).log())

    def forward(self, batch: Batch) -> Tensor:
        """(B, C): log p(class, text)."""
        text = _foretold(batch)
        length = text.loss_mask.sum(1).clamp(min=1)
        log_p = torch.stack([_log_p(model, text) for model in self._each()], 1)
        return (self.log_prior + log_p) / length[:, None] ** self.calm

    def _each(self) -> list[Any]:
        return list(self.models)

    # Learning

    def forget(self, generator: torch.Generator) -> None:
        for model in self._each():
            model.forget(generator)

    def collect(self, batch: Batch) -> ClassStatistics:
        text = _foretold(batch)
        rows = [batch.targets == number for number in range(len(self.models))]
        parts = tuple(_collect(model, text, here) for model, here in zip(self._each(), rows))
        nats = sum(float(part.nats) for part in parts if part is not None)
        return ClassStatistics(torch.stack([here.sum() for here in rows]), parts, nats)

    def update(self, statistics: ClassStatistics) -> None:
        """A class that had no text keeps its model, and counts as seen half a time, so that it stays possible."""
        seen = statistics.texts + 0.5
        self.log_prior.copy_((seen / seen.sum()).log())
        for model, part in zip(self._each(), statistics.parts):
            if part is not None:
                model.update(part)


def _foretold(batch: Batch) -> Batch:
    """The texts as a language model reads them: each token but the first is a target."""
    lengths = None if batch.lengths is None else batch.lengths - 1
    return Batch(batch.tokens[:, :-1], batch.tokens[:, 1:], lengths)


def _log_p(model: LanguageModel, text: Batch) -> Tensor:
    """(B,): log p of each text."""
    scores, _ = model.score(text.tokens, text.targets, model.begin(text))
    return scores.masked_fill(~text.loss_mask, 0).sum(1)


def _collect(model: Any, text: Batch, rows: Tensor) -> Any:
    """The Statistics of some rows; None where there are none."""
    return model.collect(text.map(lambda part: part[rows])) if bool(rows.any()) else None

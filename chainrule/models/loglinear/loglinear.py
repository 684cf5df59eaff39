"""Log-linear classifier (maximum entropy, logistic regression) over the n-grams of a text; NBSVM (Wang & Manning 2012).

    p(c | x) = softmax_c(b_c + Σ_f θ_{f,c} x_f),     θ_{f,c} = r_{f,c} w_{f,c}
    r_{f,c} = log of [(α + n_{f,c}) / Σ_f' (α + n_{f',c})] over the same of all other classes

x_f is 1 where the text has the n-gram f, however often; n_{f,c} is the number of texts of class c that have it. So r
alone is naive Bayes, and w, fitted by L-BFGS with an L2 penalty, says how far it is to be trusted for each n-gram.

Shapes: B rows, T tokens, N texts, F features, C classes, M features found in a batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from chainrule.model import IGNORE, Batch, Model
from chainrule.models.loglinear.fitting import Objective, fit, log_count_ratios, texts_of
from chainrule.models.loglinear.table import Found, build_tables, find_features, ngram_tokens
from chainrule.models.ngram.lookup import Lookup
from chainrule.settings import Count, NonNegative, Positive, Range, Settings


@dataclass(frozen=True)
class LogLinearSettings(Settings):
    order: Annotated[int, Range(1, 100)] = 3  # tokens in an n-gram, at most: all from single tokens up to this order
    min_count: Count = 2            # texts that an n-gram must occur in; rarer ones are no features
    alpha: Positive = 1.0           # added to the counts of the log-count ratios (add-k smoothing)
    ratios: bool = True             # scale each n-gram by its naive Bayes log-count ratio; false: all alike
    l2: NonNegative | Literal["auto"] = 5.0  # strength λ of the penalty ½ λ w² of each weight; auto: the best for a
                                    # tenth of the training texts, which is held out for the choice alone
    iterations: Count = 100         # steps of L-BFGS, at most


@dataclass(frozen=True)
class LabelledTexts:
    """The texts themselves, which are the statistics of a model without closed form."""

    parts: tuple[tuple[Tensor, Tensor, Tensor], ...]    # tokens (P,) end to end, lengths (N,), classes (N,)
    nats: float = math.nan

    def __add__(self, other: "LabelledTexts") -> "LabelledTexts":
        return LabelledTexts(self.parts + other.parts)

    def tensors(self) -> list[Tensor]:
        return [torch.cat(part) for part in zip(*self.parts, strict=True)]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "LabelledTexts":
        tokens, lengths, classes = tensors
        return cls(((tokens, lengths, classes),))


class LogLinear(Model):
    tasks = ("classify",)
    learns_by = "counting"
    classifies = True
    Settings = LogLinearSettings
    Statistics = LabelledTexts
    recipe: ClassVar[dict[str, Any]] = {"train.tokens": 1 << 21}

    weights: Tensor     # (F, C) θ
    bias: Tensor        # (C,)
    counts: Tensor      # (F, C) training texts of each class that have the n-gram
    l2: Tensor          # () λ, as given or as chosen
    keys_1: Tensor      # of each order the n-grams that are features (table.py)

    def __init__(self, settings: LogLinearSettings, vocab: int, classes: int = 2):
        super().__init__()
        self.settings, self.vocab, self.classes = settings, vocab, classes
        self._set_tables([torch.zeros(0, dtype=torch.long) for _ in range(settings.order)])
        self.register_buffer("weights", torch.zeros(0, classes))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("counts", torch.zeros(0, classes, dtype=torch.int32))
        self.register_buffer("l2", torch.tensor(0.0))
        self.register_load_state_dict_pre_hook(_resize_buffers)  # type: ignore[no-untyped-call]

    def forward(self, batch: Batch) -> Tensor:
        """(B, C): log p(class | text), up to a constant of each text."""
        found = self.find(batch)
        features = torch.unique(found.rows * len(self.weights) + found.features)     # each once in a text
        rows, features = features // max(1, len(self.weights)), features % max(1, len(self.weights))
        return self.bias.repeat(len(batch.tokens), 1).index_add_(0, rows, self.weights[features])

    def find(self, batch: Batch) -> Found:
        """The features of the texts, as often as they occur."""
        return find_features(self._lookups, batch.tokens, batch.lengths, self.vocab)

    # What people see

    @property
    def tables(self) -> list[Tensor]:
        return [getattr(self, f"keys_{order}") for order in range(1, self.settings.order + 1)]

    @property
    def log_count_ratios(self) -> Tensor:
        """(F, C): r"""
        return log_count_ratios(self.counts, self.settings.alpha)

    def ngram(self, feature: int) -> list[int]:
        """The tokens of a feature."""
        return ngram_tokens(self.tables, self.vocab, feature)

    # Learning

    def forget(self, generator: torch.Generator) -> None:
        """The fit begins at the same point whatever the seed."""

    def collect(self, batch: Batch) -> LabelledTexts:
        lengths = torch.full_like(batch.targets, batch.tokens.shape[1]) if batch.lengths is None else batch.lengths
        known = batch.targets != IGNORE
        inside = torch.arange(batch.tokens.shape[1], device=lengths.device) < lengths[:, None]
        tokens = batch.tokens[inside & known[:, None]].int()
        return LabelledTexts(((tokens.cpu(), lengths[known].cpu(), batch.targets[known].cpu()),))

    def update(self, statistics: LabelledTexts) -> None:
        tokens, lengths, targets = statistics.tensors()
        settings, device = self.settings, self.bias.device
        tables, presence = build_tables(
            tokens.numpy(), texts_of(lengths), len(lengths), settings.order, self.vocab, settings.min_count)
        objective = Objective(settings.alpha, settings.ratios, settings.iterations)
        fitted = fit(presence, targets, self.classes, objective, None if settings.l2 == "auto" else settings.l2)
        self._set_tables([torch.from_numpy(table).to(device) for table in tables])
        self.weights, self.bias, self.counts = (
            part.to(device) for part in (fitted.weights, fitted.bias, fitted.counts))
        self.l2 = torch.tensor(fitted.l2, device=device)

    def _set_tables(self, tables: Sequence[Tensor]) -> None:
        for order, table in enumerate(tables, 1):
            self.register_buffer(f"keys_{order}", table)
        self._made: list[Lookup] = []

    @property
    def _lookups(self) -> list[Lookup]:
        if not self._made:
            self._made = [Lookup(table) for table in self.tables]
        return self._made

    def _apply(self, *args: Any, **kwargs: Any) -> "LogLinear":
        self._made = []                                          # they belong to the old device
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self


def _resize_buffers(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """How many n-grams there are depends on the training texts, so the buffers take the sizes of the file."""
    assert isinstance(module, LogLinear)
    for name, buffer in list(module.named_buffers(recurse=False)):
        if prefix + name in state:
            module.register_buffer(name, torch.empty_like(state[prefix + name], device=buffer.device))
    module._made = []
    _refuse_broken(module, state, prefix)


def _refuse_broken(model: LogLinear, state: dict[str, Any], prefix: str) -> None:
    """Tables that point outside each other, as those of a damaged file do."""
    names = [f"{prefix}keys_{order}" for order in range(1, model.settings.order + 1)]
    if not all(name in state for name in (*names, f"{prefix}weights", f"{prefix}counts", f"{prefix}bias")):
        return                                                   # load_state_dict says which is missing
    size, below = 0, model.vocab
    for order, name in enumerate(names, 1):
        keys = state[name]
        if keys.dim() != 1 or bool((keys.diff() <= 0).any()) or bool(((keys < 0) | (keys >= below)).any()):
            raise ValueError(f"the n-grams of order {order} are damaged: they do not fit those of order {order - 1}")
        size, below = size + len(keys), len(keys) * model.vocab
    for name in ("weights", "counts"):
        if tuple(state[prefix + name].shape) != (size, model.classes):
            raise ValueError(f"the {name} are damaged: they should be {size} x {model.classes}")
    if tuple(state[f"{prefix}bias"].shape) != (model.classes,):
        raise ValueError(f"the biases are damaged: they should be {model.classes}")
    if f"{prefix}l2" in state and state[f"{prefix}l2"].dim():
        raise ValueError("the strength of the penalty is damaged: it should be one number")

"""Heads: a class for a text, or a label for each of its tokens, from the vectors that a body makes of it.

    y = A h + b,  h: the vector of the last token, of the first or of a marked one, or the mean or maximum of all

A body is a network with `encode`: a recurrent net of one direction or two, an encoder, a GPT. Gradients go through the
whole net. GPT (Radford et al. 2018) learned the text itself besides: `auxiliary`.

Shapes: B rows, T tokens, D width of the body, E width of its words, F letters in a word, C labels.
"""

import math
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.model import Batch, Encoder, Model, State, Tap, cross_entropy

Pool: TypeAlias = Literal["last", "first", "marked", "mean", "max"]


class Classifier(Model):
    tasks = ("classify",)

    def __init__(
        self,
        body: Encoder,
        labels: int,
        pool: Pool = "last",            # which vector stands for a text
        dropout: float = 0.0,           # share of its numbers dropped while learning
        *,
        mark: int | None = None,        # the token that is marked; where it stands more than once, its last place
        auxiliary: float = 0.0,         # weight of the text's own nats, beside those of its class
    ):
        super().__init__()
        _check(pool, mark, auxiliary, body)
        self.body, self.pool, self.mark, self.auxiliary = body, pool, mark, auxiliary
        self.context: int | None = getattr(body, "context", None)
        self.output = make_output(body, labels)
        self.dropout = nn.Dropout(dropout)
        self.vector = Tap()                                    # (B, D): what stands for a text

    def forward(self, batch: Batch) -> Tensor:
        return self._logits(self.body.encode(batch.tokens, batch.lengths), batch)

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        """While learning with `auxiliary`, a row adds its weight times the *mean* nats of the row's own tokens.

        So the sum is still one over rows, and the count is still theirs, however rows are put together.
        """
        vectors = self.body.encode(batch.tokens, batch.lengths)
        nats, count = cross_entropy(self._logits(vectors, batch), batch)
        if self.auxiliary and self.training:
            nats = nats + self.auxiliary * self._nats_of_text(vectors, batch)
        return nats, count, None

    def _logits(self, vectors: Tensor, batch: Batch) -> Tensor:
        pooled = self.vector(pooling(vectors, batch, self.pool, self.mark, self.body.backward))
        logits: Tensor = self.output(self.dropout(pooled))
        return logits

    def _nats_of_text(self, vectors: Tensor, batch: Batch) -> Tensor:
        lengths = None if batch.lengths is None else batch.lengths - 1
        text = Batch(batch.tokens[:, :-1], batch.tokens[:, 1:], lengths)
        share = batch.loss_mask[:, None] / text.loss_mask.sum(1, keepdim=True).clamp(min=1)
        body: Any = self.body
        nats: Tensor = body.loss_from(vectors[:, :-1], text, share.expand_as(text.tokens))[0]
        return nats


class Tagger(Model):
    """With `letters`, words are also read letter by letter: their letters are the batch's source (letters.py)."""

    tasks = ("tag",)

    def __init__(self, body: Encoder, labels: int, dropout: float = 0.0, *, letters: nn.Module | None = None):
        super().__init__()
        self.body, self.letters = body, letters
        self.context: int | None = getattr(body, "context", None)
        self.output = make_output(body, labels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: Batch) -> Tensor:
        more = None if self.letters is None else self.letters(batch.source)
        logits: Tensor = self.output(self.dropout(self.body.encode(batch.tokens, batch.lengths, more)))
        return logits


def pooling(vectors: Tensor, batch: Batch, pool: Pool, mark: int | None = None, backward: int = 0) -> Tensor:
    """(B, T, D) -> (B, D). Numbers that were read backward are at their last at the first token."""
    real = _real(batch)[..., None]                                                         # (B, T, 1)
    if pool == "mean":
        return vectors.where(real, 0).sum(1) / real.sum(1)
    if pool == "max":
        return vectors.masked_fill(~real, -math.inf).amax(1)
    if pool == "first":
        return vectors[:, 0]
    found = _real(batch) if pool == "last" else _real(batch) & (batch.tokens == mark)
    place = torch.where(found, torch.arange(vectors.shape[1], device=vectors.device), 0).amax(1)
    there = vectors[torch.arange(len(vectors), device=vectors.device), place]
    if pool == "marked" or not backward:
        return there
    return torch.cat([there[:, :-backward], vectors[:, 0, -backward:]], -1)


def make_output(body: Encoder, labels: int) -> nn.Linear:
    """A and b, as GPT's began."""
    output = nn.Linear(body.width, labels)
    nn.init.normal_(output.weight, std=0.02)
    nn.init.zeros_(output.bias)
    return output


def _real(batch: Batch) -> Tensor:
    """(B, T): True where a token is no padding."""
    if batch.lengths is None:
        return torch.ones_like(batch.tokens, dtype=torch.bool)
    return torch.arange(batch.tokens.shape[1], device=batch.tokens.device) < batch.lengths[:, None]


def _check(pool: str, mark: int | None, auxiliary: float, body: Encoder) -> None:
    if pool not in get_args(Pool):
        raise UserError(f"pool={pool} is not one of {', '.join(get_args(Pool))}.")
    if (pool == "marked") != (mark is not None):
        raise UserError("a classifier on a marked token needs the token, and no other does: pool='marked', mark=TOKEN.")
    if auxiliary < 0:
        raise UserError(f"auxiliary={auxiliary:g}: it is 0 or more.")
    if auxiliary and (not hasattr(body, "loss_from") or body.backward):
        raise UserError(f"auxiliary={auxiliary:g} needs a body that foretells its text, and this one sees all of it.")

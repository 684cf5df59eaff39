"""Classification heads: a class for a text (pooling), or a label for each token, from the vectors of a body.

    y = A h + b,  h: the vector of the last token, of the first or of a marked one, or mean or max pool_vectors
    y = A relu(W h + c) + b      with `hidden` units between: a multilayer perceptron (MLP)

A body is a network with `encode`: a recurrent network, an encoder, a GPT. Gradients flow through all of it. GPT
(Radford et al. 2018) kept the language-model loss as an auxiliary objective: `auxiliary`.

Shapes: B rows, T tokens, D width of the body, E its embedding size, F characters of a word, C labels.
"""

import math
from typing import Literal, Protocol, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.kernels.cpu.dropout import Dropout
from chainrule.model import Batch, Encoder, Model, State, Tap, cross_entropy

Pool: TypeAlias = Literal["last", "first", "marked", "mean", "max"]


class TextPredictor(Protocol):
    """A body that also predicts the next token from its vectors: what the auxiliary loss needs."""

    def loss_from(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


class Classifier(Model):
    tasks = ("classify",)

    def __init__(
        self,
        body: Encoder,
        labels: int,
        pool: Pool = "last",            # how the vectors of a text become one
        dropout: float = 0.0,           # of the pooled vector
        *,
        mark: int | None = None,        # the marked token of pool="marked"; its last occurrence is used
        auxiliary: float = 0.0,         # weight of the auxiliary language-model loss
        hidden: int | None = None,      # hidden units of an MLP head; None: it is linear
        bias: bool = True,              # b in A h + b
    ):
        super().__init__()
        _check(pool, mark, auxiliary, body)
        self.body, self.pool, self.mark, self.auxiliary = body, pool, mark, auxiliary
        self.context: int | None = getattr(body, "context", None)
        self.hidden = hidden_layer(body, hidden)
        self.output = linear_head(hidden or body.width, labels, bias)
        self.dropout = Dropout(dropout)
        self.vector = Tap()                                    # (B, D): the pooled vector

    def forward(self, batch: Batch) -> Tensor:
        return self._logits(self.body.encode(batch.tokens, batch.lengths), batch)

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        """In training, the auxiliary loss of a row is the *mean* nats of its own tokens, times the weight.

        So the loss is still a sum over rows, and does not depend on how rows are batched.
        """
        vectors = self.body.encode(batch.tokens, batch.lengths)
        nats, count = cross_entropy(self._logits(vectors, batch), batch)
        if self.auxiliary and self.training:
            nats = nats + self.auxiliary * self._language_model_loss(vectors, batch)
        return nats, count, None

    def _logits(self, vectors: Tensor, batch: Batch) -> Tensor:
        pooled = self.vector(pool_vectors(vectors, batch, self.pool, self.mark, self.body.backward))
        logits: Tensor = self.output(self.dropout(self.hidden(pooled)))
        return logits

    def _language_model_loss(self, vectors: Tensor, batch: Batch) -> Tensor:
        lengths = None if batch.lengths is None else batch.lengths - 1
        text = Batch(batch.tokens[:, :-1], batch.tokens[:, 1:], lengths)
        share = batch.loss_mask[:, None] / text.loss_mask.sum(1, keepdim=True).clamp(min=1)
        body = cast(TextPredictor, self.body)
        nats, _ = body.loss_from(vectors[:, :-1], text, share.expand_as(text.tokens))
        return nats


class TokenClassifier(Model):
    """A label for each token. With `char_cnn`, the characters of the words are the batch's source (char_cnn.py)."""

    tasks = ("tag",)

    def __init__(
        self, body: Encoder, labels: int, dropout: float = 0.0, *, char_cnn: nn.Module | None = None,
        hidden: int | None = None,
    ):
        super().__init__()
        self.body, self.char_cnn = body, char_cnn
        self.context: int | None = getattr(body, "context", None)
        self.hidden = hidden_layer(body, hidden)
        self.output = linear_head(hidden or body.width, labels)
        self.dropout = Dropout(dropout)

    def forward(self, batch: Batch) -> Tensor:
        more = None if self.char_cnn is None else self.char_cnn(batch.source)
        vectors = self.body.encode(batch.tokens, batch.lengths, more)
        logits: Tensor = self.output(self.dropout(self.hidden(vectors)))
        return logits


def pool_vectors(vectors: Tensor, batch: Batch, pool: Pool, mark: int | None = None, backward: int = 0) -> Tensor:
    """(B, T, D) -> (B, D). The last `backward` units were read right to left, so they end at the first token."""
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


def hidden_layer(body: Encoder, hidden: int | None) -> nn.Module:
    """relu(W h + c); without hidden units, h as it is."""
    return nn.Identity() if hidden is None else nn.Sequential(nn.Linear(body.width, hidden), nn.ReLU())


def linear_head(width: int, labels: int, bias: bool = True) -> nn.Linear:
    """A and b, initialised as GPT's."""
    output = nn.Linear(width, labels, bias)
    nn.init.normal_(output.weight, std=0.02)
    if bias:
        nn.init.zeros_(output.bias)
    return output


def _real(batch: Batch) -> Tensor:
    """(B, T): the padding mask, True at real tokens."""
    if batch.lengths is None:
        return torch.ones(batch.tokens.shape[:2], dtype=torch.bool, device=batch.tokens.device)
    return torch.arange(batch.tokens.shape[1], device=batch.tokens.device) < batch.lengths[:, None]


def _check(pool: str, mark: int | None, auxiliary: float, body: Encoder) -> None:
    if pool not in get_args(Pool):
        raise UserError(f"pool={pool} is not one of {', '.join(get_args(Pool))}.")
    if (pool == "marked") != (mark is not None):
        raise UserError("a classifier on a marked token needs the token, and no other does: pool='marked', mark=TOKEN.")
    if auxiliary < 0:
        raise UserError(f"auxiliary={auxiliary:g}: it is 0 or more.")
    if auxiliary and (not hasattr(body, "loss_from") or body.backward):
        raise UserError(f"auxiliary={auxiliary:g} needs a body that predicts its text, and this one reads all of it.")

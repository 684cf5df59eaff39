"""Feed-forward neural language model (Bengio et al. 2003): a network over a window of embedded tokens.

    x = [E[w_1], …, E[w_{n-1}]];   h = g(Wx + b);   logits = U h + c, or U [h, x] + c with direct connections

State: the last n - 1 tokens.

Shapes: B rows, T tokens, N = order - 1, E embedding, H hidden units.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from chainrule.errors import UserError
from chainrule.kernels.cpu.dropout import Dropout
from chainrule.layers.embedding import (
    FeatureProjection,
    FrameSettings,
    NeuralLanguageModel,
    OneHot,
    PretrainedVectors,
    embed_tokens,
)
from chainrule.model import BOUNDARY, Tap
from chainrule.settings import BelowOne, Range, Size

if TYPE_CHECKING:
    from chainrule.defaults.budgets import Budget, CorpusSize

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": nn.functional.gelu,
}


@dataclass(frozen=True)
class FeedForwardSettings(PretrainedVectors, FrameSettings):
    order: Annotated[int, Range(2, 1000)] = 6  # tokens in an n-gram: the predicted one and the order - 1 before it
    layers: Annotated[int, Range(1, 10_000)] = 1  # hidden layers
    hidden: Size = 512              # hidden units in a layer
    embedding: Size | OneHot = 256  # embedding dimension; onehot: one-hot vectors of the tokens, with no embedding
    activation: Literal["tanh", "relu", "sigmoid", "gelu"] = "gelu"  # g; Bengio et al. use tanh
    tied: bool = False              # weight tying: output matrix = embedding (h is projected if sizes differ)
    direct: bool = False            # direct connections from the embeddings to the output, past the hidden layers
    dropout: BelowOne = 0.0         # dropout of the window and of each hidden layer


class FeedForward(NeuralLanguageModel):
    tasks = ("lm", "classify", "tag")
    backward = 0
    Settings = FeedForwardSettings
    recipe: ClassVar[dict[str, Any]] = {
        "model.dropout": 0.5, "train.batching": "streams", "train.length": 64, "train.tokens": 4096, "train.lr": 2e-3,
    }

    @classmethod
    def candidate_settings(
        cls, widths: Sequence[int], budget: "Budget", corpus: "CorpusSize"
    ) -> list[dict[str, Any]]:
        return [{"model.order": 9, "model.embedding": max(16, width // 8), "model.hidden": width} for width in widths]

    def __init__(self, settings: FeedForwardSettings, vocab: int):
        super().__init__()
        self.receptive_field = settings.order - 1
        self.activation = ACTIVATIONS[settings.activation]
        size = settings.embedding
        self.inputs = vocab if isinstance(size, str) else size
        window = self.receptive_field * self.inputs
        sizes = [window, *[settings.hidden] * settings.layers]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        self.direct = settings.direct
        self.dropout = Dropout(settings.dropout)
        self.width = settings.hidden + window * settings.direct
        self.project = None if settings.features is None else FeatureProjection(settings.features, self.inputs)
        if self.project is None:
            self.embedding = embed_tokens(size, vocab, self.width, tied=settings.tied)
        self.hidden = Tap()                                              # (B, T, H) of the last layer

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        if self.project is not None:
            raise UserError("model.features says that vectors are read, so it predicts no token; it can only classify "
                            "and tag.")
        return torch.full((rows, self.receptive_field or 0), BOUNDARY, device=next(self.parameters()).device)

    def hidden_states(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        history = torch.cat([state, tokens], 1)                          # (B, N + T)
        return self._run(self.embedding(history)[:, 1:]), history[:, tokens.shape[1] :]

    def encode(self, tokens: Tensor, lengths: Tensor | None = None, more: Tensor | None = None) -> Tensor:
        """The body of a head (heads.py): (B, T) -> (B, T, H), or of (B, T, F) frames, before which there are zeros."""
        before = (self.receptive_field or 0) - 1
        if self.project is None:
            x = self.embedding(pad(tokens, (before, 0), value=BOUNDARY))
        else:
            x = pad(self.project(tokens), (0, 0, before, 0))
        return self._run(x if more is None else x + pad(more, (0, 0, before, 0)))

    def _run(self, x: Tensor) -> Tensor:
        """(B, N - 1 + T, E) -> (B, T, H): of each token, and the N - 1 before it."""
        windows = x.unfold(1, self.receptive_field or 0, 1)                 # (B, T, E, N)
        window = self.dropout(windows.transpose(2, 3).flatten(2))           # (B, T, N·E): the context after each token
        h = window
        for layer in self.layers:
            h = self.dropout(self.activation(layer(h)))
        self.hidden(h)
        return torch.cat([h, window], -1) if self.direct else h

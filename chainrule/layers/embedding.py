"""Token embedding and output projection of a network, with optional weight tying (Press & Wolf 2017).

    x = E[token];   logits = U h + b,  where U = E if the weights are tied

Shapes: B rows, T tokens, V vocabulary, E embedding, H hidden units.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, linear

from chainrule.errors import UserError
from chainrule.layers.cross_entropy import chunked_cross_entropy
from chainrule.model import Batch, LanguageModel, State
from chainrule.settings import Settings


@dataclass(frozen=True, kw_only=True)
class PretrainedVectors(Settings):
    """Settings of kinds whose embedding can start from pretrained word vectors; training/finetune.py reads them."""

    vectors: str | None = None      # file of word vectors, or a run, to initialise the embedding from; none: random
    vectors_frozen: bool = False    # freeze the embedding that model.vectors initialised


class TokenEmbedding(nn.Module):
    def __init__(self, vocab: int, size: int, hidden: int | None, *, tied: bool = True, dropout: float = 0.0):
        """`hidden`: H, the input size of the output projection; None: an embedding without one."""
        super().__init__()
        self.dropout = dropout            # probability of dropping a word type during training
        self.label_smoothing = 0.0        # label smoothing during training
        self.weight = nn.Parameter(torch.empty(vocab, size).uniform_(-0.1, 0.1))
        self.project = self.output = self.bias = None
        if hidden is not None:
            self.project = nn.Linear(hidden, size, bias=False) if tied and hidden != size else None
            self.output = None if tied else nn.Linear(hidden, vocab, bias=False)
            self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, E). Word dropout zeroes a word everywhere in the batch (Gal & Ghahramani 2016)."""
        vectors = embedding(tokens, self.weight)
        if not self.training or self.dropout == 0:
            return vectors
        kept = dropout(vectors.new_ones(len(self.weight)), self.dropout)
        return vectors * kept[tokens][..., None]

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)"""
        return linear(self._projected(hidden), self.output_matrix, self.bias)

    def loss(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        smoothing = self.label_smoothing if self.training else 0.0
        hidden = self._projected(hidden)
        return chunked_cross_entropy(
            hidden, self.output_matrix, self.bias, batch, weights=weights, label_smoothing=smoothing
        )

    def set_embeddings(self, matrix: Tensor, frozen: bool = False) -> None:
        """Replaces the embedding by pretrained vectors; frozen: training leaves them as they are."""
        if matrix.shape != self.weight.shape:
            got, expected = (" x ".join(map(str, part.shape)) for part in (matrix, self.weight))
            raise UserError(f"the word vectors are {got}, and this model's are {expected}; set model.embedding to fit.")
        with torch.no_grad():
            self.weight.copy_(matrix)
        self.weight.requires_grad_(not frozen)

    @property
    def output_matrix(self) -> Tensor:
        """(V, E) or (V, H): the embedding itself if the weights are tied."""
        return self.weight if self.output is None else self.output.weight

    def _projected(self, hidden: Tensor) -> Tensor:
        return hidden if self.project is None else self.project(hidden)


class NeuralLanguageModel(LanguageModel):
    """A network between a token embedding and an output projection. A kind defines `start` and `hidden_states`."""

    embedding: TokenEmbedding
    embedding_parameters: ClassVar[tuple[str, ...]] = ("embedding.weight",)

    @property
    def embeddings(self) -> Tensor:
        """(V, E): the vector of each token."""
        return self.embedding.weight

    def hidden_states(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T) -> (B, T, H): the vectors from which the next tokens are predicted. The old state is used up."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.hidden_states(tokens, state)
        return self.embedding.logits(hidden), state

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        hidden, state = self.hidden_states(batch.tokens, self.begin(batch, state))
        return *self.embedding.loss(hidden, batch), state

    def loss_from(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`loss` of the predictions from (B, T, H) vectors; `weights` (B, T): a weight for each target."""
        return self.embedding.loss(hidden, batch, weights)

    def set_embeddings(self, matrix: Tensor, frozen: bool = False) -> None:
        self.embedding.set_embeddings(matrix, frozen)

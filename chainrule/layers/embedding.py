"""The vectors that stand for words at the two ends of a network: looked up where it reads, compared with as it answers.

    x = E[token];   logits = U h + b, where U is E itself if they are tied (Press & Wolf 2017)

Shapes: B rows, T tokens, V vocabulary, E embedding, H what the network answers with.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, linear

from chainrule.errors import UserError
from chainrule.layers.cross_entropy import chunked_cross_entropy
from chainrule.model import Batch, LanguageModel, State
from chainrule.settings import Settings


@dataclass(frozen=True, kw_only=True)
class PretrainedVectors(Settings):
    """Settings of kinds that can begin with word vectors made elsewhere; training/finetune.py reads them."""

    vectors: str | None = None      # file of word vectors, or a run, to initialise the embedding from; none: random
    vectors_frozen: bool = False    # freeze the embedding that model.vectors initialised


class TokenEmbedding(nn.Module):
    def __init__(self, vocab: int, size: int, hidden: int | None, *, tied: bool = True, dropout: float = 0.0):
        """`hidden`: numbers in what the network answers with; None: these words are only read."""
        super().__init__()
        self.dropout = dropout            # share of words that read as 0 while learning
        self.label_smoothing = 0.0              # share of a target that learning spreads over all words
        self.embedding = nn.Parameter(torch.empty(vocab, size).uniform_(-0.1, 0.1))
        self.project = self.output = self.bias = None
        if hidden is not None:
            self.project = nn.Linear(hidden, size, bias=False) if tied and hidden != size else None
            self.output = None if tied else nn.Linear(hidden, vocab, bias=False)
            self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, E). A dropped word is dropped wherever it stands in the batch (Gal & Ghahramani 2016)."""
        vectors = embedding(tokens, self.embedding)
        if not self.training or self.dropout == 0:
            return vectors
        kept = dropout(vectors.new_ones(len(self.embedding)), self.dropout)
        return vectors * kept[tokens][..., None]

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, V)"""
        return linear(self._projected(hidden), self._matrix, self.bias)

    def loss(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        smoothing = self.label_smoothing if self.training else 0.0
        hidden = self._projected(hidden)
        return chunked_cross_entropy(hidden, self._matrix, self.bias, batch, weights=weights, label_smoothing=smoothing)

    def set_embeddings(self, matrix: Tensor, frozen: bool = False) -> None:
        """Take word vectors made elsewhere; frozen: learning leaves them as they are."""
        if matrix.shape != self.embedding.shape:
            came, wanted = (" x ".join(map(str, part.shape)) for part in (matrix, self.embedding))
            raise UserError(f"the word vectors are {came}, and this model's are {wanted}; set model.embedding to fit.")
        with torch.no_grad():
            self.embedding.copy_(matrix)
        self.embedding.requires_grad_(not frozen)

    @property
    def _matrix(self) -> Tensor:
        return self.embedding if self.output is None else self.output.weight

    def _projected(self, hidden: Tensor) -> Tensor:
        return hidden if self.project is None else self.project(hidden)


class NeuralLanguageModel(LanguageModel):
    """A network between the two ends. A kind gives `read`, and what is said about the words follows."""

    words: TokenEmbedding

    @property
    def embeddings(self) -> Tensor:
        """(V, E): the vectors by which it knows its tokens."""
        return self.words.embedding

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, T) -> (B, T, H): the vectors from which what follows each token is foretold. The old state is spent."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        hidden, state = self.read(tokens, state)
        return self.words.logits(hidden), state

    def loss(self, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
        hidden, state = self.read(batch.tokens, self.begin(batch, state))
        return *self.words.loss(hidden, batch), state

    def loss_from(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`loss` of what (B, T, H) vectors foretell; with `weights` (B, T) targets count for more or less."""
        return self.words.loss(hidden, batch, weights)

    def set_embeddings(self, matrix: Tensor, frozen: bool = False) -> None:
        self.words.set_embeddings(matrix, frozen)

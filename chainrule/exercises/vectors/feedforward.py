"""Exercise feedforward: a feed-forward language model (Bengio et al. 2003) behind chainrule's protocol.

    x = [E[w_{t-n+2}], …, E[w_t]]        h = tanh(W x + b)        logits = U h + c

The model reads tokens one after another and keeps a state. `start` gives the state before any token; `step` reads
tokens and returns the logits of the token after each of them. Here the state is the last n - 1 tokens, oldest first.
Shapes: B rows, T tokens, V vocabulary, n order, D embedding, H hidden units.
"""

import torch
from torch import Tensor, nn

from chainrule.model import LanguageModel


class FeedForwardLM(LanguageModel):
    def __init__(self, vocab: int, order: int, embedding: int, hidden: int):
        super().__init__()
        self.order = order
        self.receptive_field = order - 1                                          # tokens that a prediction depends on
        self.E = nn.Parameter(torch.randn(vocab, embedding))
        self.W = nn.Parameter(torch.randn(hidden, (order - 1) * embedding) / 10)
        self.b = nn.Parameter(torch.zeros(hidden))
        self.U = nn.Parameter(torch.randn(vocab, hidden) / 10)
        self.c = nn.Parameter(torch.zeros(vocab))

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """(B, n-1): before any text there are boundaries (token BOUNDARY)."""
        raise NotImplementedError

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T) tokens, (B, n-1) state -> (B, T, V) logits of what follows each token, and the next state.

        The window after token t ends with token t itself. The embeddings of a window are concatenated, oldest first.
        """
        raise NotImplementedError

import torch
from torch import Tensor, nn

from chainrule.model import BOUNDARY, LanguageModel


class FeedForwardLM(LanguageModel):
    def __init__(self, vocab: int, order: int, embedding: int, hidden: int):
        super().__init__()
        self.order = order
        self.receptive_field = order - 1
        self.E = nn.Parameter(torch.randn(vocab, embedding))
        self.W = nn.Parameter(torch.randn(hidden, (order - 1) * embedding) / 10)
        self.b = nn.Parameter(torch.zeros(hidden))
        self.U = nn.Parameter(torch.randn(vocab, hidden) / 10)
        self.c = nn.Parameter(torch.zeros(vocab))

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        return torch.full((rows, self.order - 1), BOUNDARY)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        history = torch.cat([state, tokens], 1)
        windows = history.unfold(1, self.order - 1, 1)[:, 1:]
        x = self.E[windows].flatten(2)
        h = torch.tanh(x @ self.W.T + self.b)
        return h @ self.U.T + self.c, history[:, tokens.shape[1] :]

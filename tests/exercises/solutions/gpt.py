import math

import torch
from torch import Tensor, nn

from chainrule.model import LanguageModel, State


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.W_Q, self.W_K, self.W_V, self.W_O = (nn.Parameter(torch.randn(width, width) / 4) for _ in range(4))
        self.ff1, self.ff2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, heads):
        x = x + self.attention(self.norm1(x), heads)
        return x + self.ff2(nn.functional.gelu(self.ff1(self.norm2(x)), approximate="tanh"))

    def attention(self, x, heads):
        Q, K, V = ((x @ W).unflatten(-1, (heads, -1)).transpose(1, 2) for W in (self.W_Q, self.W_K, self.W_V))
        M = torch.full((x.shape[1], x.shape[1]), -math.inf).triu(1)
        mixed = (Q @ K.mT / math.sqrt(Q.shape[-1]) + M).softmax(-1) @ V
        return mixed.transpose(1, 2).flatten(2) @ self.W_O


class GPT(LanguageModel):
    def __init__(self, vocab: int, width: int, heads: int, layers: int, context: int):
        super().__init__()
        self.heads, self.context = heads, context
        self.E = nn.Parameter(torch.randn(vocab, width) / 10)
        self.P = nn.Parameter(torch.randn(context, width) / 10)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> State:
        return {"tokens": torch.zeros((rows, 0), dtype=torch.long), "length": torch.zeros(rows, dtype=torch.long)}

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        places = state["length"][:, None] + torch.arange(tokens.shape[1])
        room = int(places.max()) + 1
        history = torch.zeros((len(tokens), room), dtype=torch.long)
        history[:, : state["tokens"].shape[1]] = state["tokens"][:, :room]
        history = history.scatter(1, places, tokens)
        x = self.E[history] + self.P[:room]
        for layer in self.layers:
            x = layer(x, self.heads)
        logits = self.norm(x) @ self.E.T
        logits = logits.gather(1, places[..., None].expand(-1, -1, logits.shape[-1]))
        return logits, {"tokens": history, "length": state["length"] + tokens.shape[1]}

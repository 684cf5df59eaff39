"""Two small networks that stand in for every network: one that carries a hidden vector, one that keeps all it has read.

They exist to exercise the laws for kinds that learn by gradient, and every path for models with a context limit.

Shapes: B rows, T tokens, C cached tokens, D width, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chainrule.model import LanguageModel, Tap


@dataclass(frozen=True)
class ToySettings:
    width: int = 8
    context: int = 16


class Recurrent(LanguageModel):
    """A gated recurrent network. State: the hidden vector."""

    Settings = ToySettings

    def __init__(self, settings: ToySettings, vocab: int):
        super().__init__()
        self.embed = nn.Embedding(vocab, settings.width)
        self.cell = nn.GRUCell(settings.width, settings.width)
        self.out = nn.Linear(settings.width, vocab)
        self.hidden = Tap()

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        return self.out.weight.new_zeros(rows, self.cell.hidden_size)

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = []
        for column in self.embed(tokens).unbind(1):
            state = self.cell(column, state)
            hidden.append(state)
        return self.out(self.hidden(torch.stack(hidden, 1))), state


class Attentive(LanguageModel):
    """One head of causal attention, learned positions. State: the keys and values of what was read, and its length."""

    Settings = ToySettings

    def __init__(self, settings: ToySettings, vocab: int):
        super().__init__()
        self.context = settings.context
        self.embed = nn.Embedding(vocab, settings.width)
        self.position = nn.Embedding(settings.context, settings.width)
        self.mix = nn.Linear(settings.width, 3 * settings.width)
        self.out = nn.Linear(settings.width, vocab)
        self.pattern = Tap()

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> dict[str, Tensor]:
        empty = self.out.weight.new_zeros(rows, 0, self.mix.in_features)
        return {"keys": empty, "values": empty, "length": torch.zeros(rows, dtype=torch.long, device=empty.device)}

    def step(self, tokens: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        here = state["length"][:, None] + torch.arange(tokens.shape[1], device=tokens.device)    # (B, T) their places
        embedded = self.embed(tokens) + self.position(here)
        query, key, value = self.mix(embedded).chunk(3, -1)
        keys, values = _remember(state["keys"], key, here), _remember(state["values"], value, here)
        later = torch.arange(keys.shape[1], device=tokens.device) > here[..., None]              # (B, T, C)
        pattern = (query @ keys.transpose(1, 2)).masked_fill(later, -torch.inf).softmax(-1)
        state = {"keys": keys, "values": values, "length": state["length"] + tokens.shape[1]}
        return self.out(embedded + self.pattern(pattern) @ values), state


def _remember(cache: Tensor, new: Tensor, here: Tensor) -> Tensor:
    """(B, C, D), (B, T, D), (B, T): the cache, as long as its longest row needs, with the new ones in their places."""
    missing = max(0, int(here.max()) + 1 - cache.shape[1])
    cache = torch.cat([cache, cache.new_zeros(len(cache), missing, cache.shape[2])], 1)
    return cache.scatter(1, here[..., None].expand_as(new), new)

"""GPT: a Transformer that sees only what is behind it, and says what comes next (Radford et al. 2018).

By default as the best small ones are built today: rotary positions, RMS norms before each part and on queries and keys,
ReLU², no biases, projections that begin at zero; the presets are the published ones. State: the keys and values of what
was read, and its length (`cache.py`). Learning needs none: whole windows are read at once.

Shapes: B rows, T tokens, D width, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule.errors import UserError
from chainrule.model import Batch, LanguageModel
from chainrule.models import cache
from chainrule.models.cache import Cache, Pair
from chainrule.models.choices import TransformerSettings
from chainrule.models.output import capped, nats_of
from chainrule.models.transformer import Embedding, Stack


@dataclass(frozen=True)
class GPTSettings(TransformerSettings):
    tied: bool | None = None    # the output matrix is that of the embedding; none: where that saves a fifth
    cap: float | None = None    # logits are held softly between -cap and cap; none: they are free

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cap is not None and self.cap <= 0:
            raise UserError(f"model.cap={self.cap:g}: it is more than 0, or none for free logits.")


class GPT(LanguageModel):
    learns_by = "gradient"
    Settings = GPTSettings
    recipe: ClassVar[dict[str, Any]] = {"train.optimizer": "muon"}
    context: int

    def __init__(self, settings: GPTSettings, vocab: int):
        super().__init__()
        self.settings, self.context = settings, settings.context
        if settings.window is not None:
            self.reach = 1 + settings.layers * (settings.window - 1)
        self.embedding = Embedding(settings, vocab)
        self.stack = Stack(settings, causal=True)
        blocks = sum(parameter.numel() for parameter in self.stack.parameters())
        tied = 4 * vocab * settings.width > blocks if settings.tied is None else settings.tied
        self.output = None if tied else nn.Linear(settings.width, vocab, bias=False)
        self._reset()

    def _reset(self) -> None:
        """First words. Those that are also the output matrix, or are scaled up on the way in, must be small."""
        settings, small = self.settings, 1 / math.sqrt(self.settings.width)
        first = small if self.output is None or settings.positions == "sinusoidal" else 1.0
        nn.init.normal_(self.embedding.words.weight, std=settings.init or first)
        if self.embedding.places is not None:
            nn.init.normal_(self.embedding.places.weight, std=settings.init or 0.02)
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=0.0 if settings.zero else settings.init or small)

    @property
    def matrix(self) -> Tensor:
        """(V, D): what a hidden vector is compared with to foretell each token."""
        weight: Tensor = (self.output or self.embedding.words).weight
        return weight

    # Learning: whole windows, no state

    def forward(self, batch: Batch) -> Tensor:
        return self.logits(self.hidden(batch.tokens))

    def nats(self, batch: Batch, state: Cache | None = None) -> tuple[Tensor, Tensor, Cache | None]:
        hidden, state = (self.hidden(batch.tokens), None) if state is None else self.read(batch.tokens, state)
        return *nats_of(hidden, self.matrix, None, batch, self.settings.cap), state

    def hidden(self, tokens: Tensor) -> Tensor:
        """(B, T) -> (B, T, D): the top of the stack, of texts that begin here."""
        return self._from_nothing(tokens)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return capped(linear(hidden, self.matrix), self.settings.cap)

    # Going on

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Cache:
        settings = self.settings
        return cache.empty(rows, settings.layers, settings.keys, settings.head_size, self.matrix)

    def step(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        hidden, state = self.read(tokens, state)
        return self.logits(hidden), state

    def read(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        """(B, T) -> (B, T, D): what `step` says, before it is compared with the words."""
        length = state["length"] + tokens.shape[1]
        if cache.room(state) == 0:
            hidden, pairs = self._from_nothing(tokens)
            return hidden, cache.widened(cache.stacked(pairs, length), tokens.shape[1], self.context)
        state = cache.with_room(state, tokens.shape[1], self.context)
        places = state["length"][:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        hidden, pairs = self.stack(self.embedding(tokens, places), places, past=cache.layers(state, places))
        if torch.is_grad_enabled():
            return hidden, cache.stacked(pairs, length)
        return hidden, {**state, "length": length}

    def _from_nothing(self, tokens: Tensor) -> tuple[Tensor, list[Pair]]:
        cache.refuse_more(tokens.shape[1], self.context)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden, pairs = self.stack(self.embedding(tokens, places), places)
        return hidden, pairs

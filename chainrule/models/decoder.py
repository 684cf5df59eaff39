"""What decoders have in common: words in, a stack that sees only what is behind, words compared with what comes out.

State: the keys and values of what was read, and its length (`cache.py`); a kind with a source keeps more beside them.
Learning needs no cache: whole windows are read at once.

Shapes: B rows, T tokens, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule import kernels
from chainrule.errors import UserError
from chainrule.model import Batch, LanguageModel
from chainrule.models import cache, one_token
from chainrule.models.attention import Source
from chainrule.models.cache import Cache, Pair
from chainrule.models.choices import TransformerSettings
from chainrule.models.output import capped, nats_of
from chainrule.models.transformer import Embedding, Stack, make_output, reset_output
from chainrule.models.words import FirstVectors


@dataclass(frozen=True)
class DecoderSettings(TransformerSettings, FirstVectors):
    tied: bool | None = None    # the output matrix is that of the embedding; none: where that saves a fifth
    cap: float | None = None    # logits are held softly between -cap and cap; none: they are free

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cap is not None and self.cap <= 0:
            raise UserError(f"model.cap={self.cap:g}: it is more than 0, or none for free logits.")


class Decoder(LanguageModel):
    learns_by = "gradient"
    context: int

    def __init__(self, settings: DecoderSettings, vocab: int, *, cross: bool = False):
        super().__init__()
        self.settings, self.context = settings, settings.context
        if settings.window is not None:
            self.reach = 1 + settings.layers * (settings.window - 1)
        self.embedding = Embedding(settings, nn.Embedding(vocab, settings.width))
        self.stack = Stack(settings, causal=True, cross=cross)
        self.output = make_output(settings, settings.tied, vocab, self.stack)
        self.embedding.reset(compared=self.output is None)
        if self.output is not None:
            reset_output(settings, self.output)

    @property
    def embeddings(self) -> Tensor:
        """(V, D): the vectors by which it knows its tokens."""
        return self.embedding.words.weight

    @property
    def matrix(self) -> Tensor:
        """(V, D): what a hidden vector is compared with to foretell each token."""
        weight: Tensor = (self.output or self.embedding.words).weight
        return weight

    def source(self, state: Cache) -> Sequence[Source]:
        """What each layer knows of the source; nothing, for a kind without one."""
        return ()

    # Learning: whole windows, no cache

    def forward(self, batch: Batch) -> Tensor:
        return self.logits(self._whole(batch))

    def nats(self, batch: Batch, state: Cache | None = None) -> tuple[Tensor, Tensor, Cache | None]:
        hidden, state = (self._whole(batch), None) if state is None else self.read(batch.tokens, state)
        return *self.nats_from(hidden, batch), state

    def nats_from(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`loss` of what (B, T, D) hidden vectors foretell; with `weights` (B, T) targets count for more or less."""
        smoothing = getattr(self.settings, "smoothing", 0.0) if self.training else 0.0
        return nats_of(hidden, self.matrix, None, batch, self.settings.cap, weights, smoothing)

    def logits(self, hidden: Tensor) -> Tensor:
        return capped(linear(hidden, self.matrix), self.settings.cap)

    def read_out(self, hidden: Tensor) -> Tensor:
        """(B, T, D) as any block leaves it -> (B, T, V): what would follow, were there no blocks above."""
        return self.logits(self.stack.norm(hidden))

    # Going on

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Cache:
        settings = self.settings
        return cache.empty(rows, settings.layers, settings.keys, settings.head_size, self.matrix)

    def step(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        if kernels.fit(tokens) and one_token.suits(self, tokens, state):
            return one_token.step(self, tokens, state)
        hidden, state = self.read(tokens, state)
        return self.logits(hidden), state

    def read(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        """(B, T) -> (B, T, D): what `step` says, before it is compared with the words."""
        length, source = state["length"] + tokens.shape[1], self.source(state)
        if cache.room(state) == 0:
            hidden, pairs = self._from_nothing(tokens, source)
            return hidden, cache.widened(state | cache.stacked(pairs, length), tokens.shape[1], self.context)
        state = cache.with_room(state, tokens.shape[1], self.context)
        places = state["length"][:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        past = cache.layers(state, places)
        hidden, pairs = self.stack(self.embedding(tokens, places), places, past=past, source=source)
        if torch.is_grad_enabled():
            return hidden, state | cache.stacked(pairs, length)
        return hidden, {**state, "length": length}

    def roomy(self, state: Cache, tokens: int) -> Cache:
        return cache.roomy(state, tokens, self.context)

    def _whole(self, batch: Batch) -> Tensor:
        """(B, T, D): the top of the stack, of texts that begin here."""
        return self._from_nothing(batch.tokens)[0]

    def _from_nothing(
        self, tokens: Tensor, source: Sequence[Source] = (), more: Tensor | None = None
    ) -> tuple[Tensor, list[Pair]]:
        cache.refuse_more(tokens.shape[1], self.context)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden, pairs = self.stack(self.embedding(tokens, places, more), places, source=source)
        return hidden, pairs

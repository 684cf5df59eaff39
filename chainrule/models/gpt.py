"""GPT: a Transformer that sees only what is behind it, and says what comes next (Radford et al. 2018).

By default as the best small ones are built today: rotary positions, RMS norms before each part and on queries and keys,
ReLU², no biases, projections that begin at zero; the presets are the published ones. State: the keys and values of what
was read, and its length. With a source, the text goes on from it in one row: 0 x1 … xm 0 y1 … yn.

Shapes: B rows, T tokens, S source tokens, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule import kernels
from chainrule.layers import decode, kv_cache
from chainrule.layers.attention import CrossMemory
from chainrule.layers.blocks import Embedding, TransformerStack, make_output, reset_output
from chainrule.layers.cross_entropy import chunked_cross_entropy, softcap
from chainrule.layers.embedding import PretrainedVectors
from chainrule.layers.kv_cache import Cache, Pair
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import BOUNDARY, Batch, LanguageModel
from chainrule.settings import Positive

# What decoders have in common: words in, a stack that sees only what is behind, words compared with what comes out.
#
# State: the keys and values of what was read, and its length (`kv_cache.py`); a kind with a source keeps more beside
# them.
# Learning needs no cache: whole windows are read at once.
#
# Shapes: B rows, T tokens, D width, V vocabulary.

@dataclass(frozen=True)
class DecoderSettings(TransformerSettings, PretrainedVectors):
    tied: bool | None = None    # weight tying: output matrix = embedding; none: where it saves a fifth of the weights
    logit_softcap: Positive | None = None  # logit soft-capping: cap · tanh(logits / cap); none: off


class Decoder(LanguageModel):
    embedding_parameters: ClassVar[tuple[str, ...]] = ("embedding", "stack.bias")
    context: int

    def __init__(self, settings: DecoderSettings, vocab: int, *, cross: bool = False):
        super().__init__()
        self.settings, self.context = settings, settings.context
        if settings.window is not None:
            self.receptive_field = 1 + settings.layers * (settings.window - 1)
        self.embedding = Embedding(settings, nn.Embedding(vocab, settings.width))
        self.stack = TransformerStack(settings, causal=True, cross=cross)
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

    def source(self, state: Cache) -> Sequence[CrossMemory]:
        """What each layer knows of the source; nothing, for a kind without one."""
        return ()

    # Learning: whole windows, no cache

    def forward(self, batch: Batch) -> Tensor:
        return self.logits(self._whole(batch))

    def loss(self, batch: Batch, state: Cache | None = None) -> tuple[Tensor, Tensor, Cache | None]:
        hidden, state = (self._whole(batch), None) if state is None else self.read(batch.tokens, state)
        return *self.loss_from(hidden, batch), state

    def loss_from(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`loss` of what (B, T, D) hidden vectors foretell; with `weights` (B, T) targets count for more or less."""
        smoothing = getattr(self.settings, "label_smoothing", 0.0) if self.training else 0.0
        return chunked_cross_entropy(hidden, self.matrix, None, batch, self.settings.logit_softcap, weights, smoothing)

    def logits(self, hidden: Tensor) -> Tensor:
        return softcap(linear(hidden, self.matrix), self.settings.logit_softcap)

    def read_out(self, hidden: Tensor) -> Tensor:
        """(B, T, D) as any block leaves it -> (B, T, V): what would follow, were there no blocks above."""
        return self.logits(self.stack.norm(hidden))

    # Going on

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Cache:
        settings = self.settings
        return kv_cache.empty(rows, settings.layers, settings.kv_heads, settings.head_size, self.matrix)

    def step(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        if kernels.use_in_decoding(tokens) and decode.suits(self, tokens, state):
            return decode.step(self, tokens, state)
        hidden, state = self.read(tokens, state)
        return self.logits(hidden), state

    def read(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        """(B, T) -> (B, T, D): what `step` says, before it is compared with the words."""
        length, source = state["length"] + tokens.shape[1], self.source(state)
        if kv_cache.room(state) == 0:
            hidden, pairs = self._from_nothing(tokens, source)
            return hidden, kv_cache.widened(state | kv_cache.stacked(pairs, length), tokens.shape[1], self.context)
        state = kv_cache.with_room(state, tokens.shape[1], self.context)
        places = state["length"][:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        past = kv_cache.layers(state, places)
        hidden, pairs = self.stack(self.embedding(tokens, places), places, past=past, source=source)
        if torch.is_grad_enabled():
            return hidden, state | kv_cache.stacked(pairs, length)
        return hidden, {**state, "length": length}

    def reserve(self, state: Cache, tokens: int) -> Cache:
        return kv_cache.reserve(state, tokens, self.context)

    def _whole(self, batch: Batch) -> Tensor:
        """(B, T, D): the top of the stack, of texts that begin here."""
        return self._from_nothing(batch.tokens)[0]

    def _from_nothing(
        self, tokens: Tensor, source: Sequence[CrossMemory] = (), more: Tensor | None = None
    ) -> tuple[Tensor, list[Pair]]:
        kv_cache.refuse_more(tokens.shape[1], self.context)
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        hidden, pairs = self.stack(self.embedding(tokens, places, more), places, source=source)
        return hidden, pairs


GPTSettings = DecoderSettings


class GPT(Decoder):
    tasks = ("lm", "classify", "tag", "translate")
    Settings = GPTSettings
    recipe: ClassVar[dict[str, Any]] = {"train.optimizer": "muon"}
    backward = 0

    def __init__(self, settings: GPTSettings, vocab: int):
        super().__init__(settings, vocab)
        self.width = self.inputs = settings.width

    def encode(self, tokens: Tensor, lengths: Tensor | None = None, more: Tensor | None = None) -> Tensor:
        """A body for heads (heads.py): (B, T) -> (B, T, D). Padding is behind all that is real, so nothing sees it."""
        return self._from_nothing(tokens, more=more)[0]

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Cache:
        state = super().start(rows)
        if source is None:
            return state
        _, state = self.read(_begun(source), state)
        return state if lengths is None else {**state, "length": lengths.clone()}    # what lies behind is written over

    def max_tokens(self, source: Tensor | None) -> int:
        return self.context - (0 if source is None else source.shape[1])

    def _whole(self, batch: Batch) -> Tensor:
        if batch.source is None:
            return super()._whole(batch)
        rows, behind = _begun(batch.source), batch.source_lengths
        if behind is None:
            behind = torch.full((len(rows),), rows.shape[1], device=rows.device)
        places = behind[:, None] + torch.arange(batch.tokens.shape[1], device=rows.device)             # (B, T)
        joined = torch.cat([rows, torch.full_like(batch.tokens, BOUNDARY)], 1).scatter(1, places, batch.tokens)
        hidden, _ = self._from_nothing(joined)                                                         # (B, S + T, D)
        return hidden.gather(1, places[..., None].expand(-1, -1, self.width))


def _begun(source: Tensor) -> Tensor:
    """(B, S): x1 … xm 0 as 0 x1 … xm, for a text begins with the boundary, and so does the one that goes on from it."""
    return torch.cat([torch.full_like(source[:, :1], BOUNDARY), source[:, :-1]], 1)

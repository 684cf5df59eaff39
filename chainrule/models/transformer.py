"""The encoder-decoder Transformer: an encoder reads the source, a decoder with cross-attention writes about it.

    memory = encoder(source), without a causal mask
    x ← x + softmax(Q Kᵀ / √d) V      cross-attention: Q of the text, K and V of the memory    (Vaswani et al. 2017)

State: the KV cache of the text, as in GPT, and the keys and values of the source, which `start` computes once.

Shapes: B rows, T tokens, S source tokens or vectors, L layers, G key/value heads, D width, d numbers in a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.layers.attention import AttentionMask, CrossMemory, padding_mask
from chainrule.layers.blocks import InputEmbedding, TransformerStack
from chainrule.layers.embedding import FeatureProjection, SourceSettings, checked_source, make_picture_encoder
from chainrule.layers.kv_cache import Cache
from chainrule.model import BOUNDARY, Batch
from chainrule.models.gpt import Decoder, DecoderSettings


@dataclass(frozen=True)
class EncoderDecoderSettings(DecoderSettings, SourceSettings):
    start_vector: bool = False  # the boundary that begins a text has a vector of its own, other than the one that ends
                                # the source (T5)


class StartEmbedding(InputEmbedding):
    """Of a decoder with model.start_vector: the boundary's vector is that of its token plus `start`."""

    def __init__(self, settings: EncoderDecoderSettings, tokens: nn.Embedding):
        super().__init__(settings, tokens)
        self.start = nn.Parameter(torch.zeros(settings.width))

    def forward(self, tokens: Tensor, positions: Tensor, more: Tensor | None = None) -> Tensor:
        start = (tokens == BOUNDARY)[..., None] * self.start
        return super().forward(tokens, positions, start if more is None else start + more)


class EncoderDecoder(Decoder):
    tasks = ("translate", "caption", "span", "denoise")
    needs_source = True
    embedding_parameters = ("embedding", "source_embedding", "pictures", "stack.bias", "encoder.bias")
    source_parameters = ("encoder.*", "source_embedding.*", "*.memory.*")
    Settings = EncoderDecoderSettings
    recipe: ClassVar[dict[str, Any]] = {"train.optimizer": "muon"}
    settings: EncoderDecoderSettings

    def __init__(self, settings: EncoderDecoderSettings, vocab: int):
        super().__init__(settings, vocab, cross=True)
        self.label_smoothing = settings.label_smoothing
        self.pictures = make_picture_encoder(settings)
        self.source_embedding = InputEmbedding(settings, self._source_tokens())
        self.encoder = TransformerStack(settings, causal=False)
        self.source_embedding.reset(tied=self.output is None)

    def _make_embedding(self, settings: EncoderDecoderSettings, tokens: nn.Embedding) -> InputEmbedding:
        return (StartEmbedding if settings.start_vector else InputEmbedding)(settings, tokens)

    def _source_tokens(self) -> nn.Embedding | nn.Linear:
        if self.settings.vector_size is not None:
            return FeatureProjection(self.settings.vector_size, self.settings.width)
        if self.settings.source_vocab is not None:
            return nn.Embedding(self.settings.source_vocab, self.settings.width)
        return self.embedding.tokens

    def _hidden(self, batch: Batch) -> Tensor:
        return self.run(batch.tokens, self.sources(self.begin(batch)), lengths=batch.lengths)[0]

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Cache:
        """The keys and values of the source are (B, L, G, S, d)."""
        source, lengths = checked_source(self.settings, rows, source, lengths)
        memory = self.encode_source(source, lengths)
        keys, values = (torch.stack(part, 1) for part in zip(*self.stack.source_keys_values(memory), strict=True))
        return super().start(rows) | {"source_keys": keys, "source_values": values, "source_length": lengths}

    def encode_source(self, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, S), (B, S, F) or pictures -> (B, S, D): the encoder's hidden vectors, the memory of the decoder."""
        source = source if self.pictures is None else self.pictures(source)
        size = source.shape[1]
        if size > self.context:
            raise UserError(f"a source of {size} tokens is longer than model.context={self.context}. Shorten it.")
        positions = torch.arange(size, device=source.device)[None]
        memory: Tensor = self.encoder(self.source_embedding(source, positions), positions, lengths)[0]
        return memory

    def sources(self, state: Cache) -> Sequence[CrossMemory]:
        mask = AttentionMask(padding_mask(state["source_length"], state["source_keys"].shape[3]))
        pairs = zip(state["source_keys"].unbind(1), state["source_values"].unbind(1), strict=True)
        return [CrossMemory(keys, values, mask) for keys, values in pairs]

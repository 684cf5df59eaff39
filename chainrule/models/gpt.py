"""GPT: a causal Transformer that predicts the next token (Radford et al. 2018).

    token ids → embedding → blocks (layers/blocks.py, layers/attention.py) → norm → logits → cross-entropy

By default it is built as the best small ones are today: RoPE, pre-norm RMSNorm and QK norm, ReLU², no biases,
zero-initialised output projections; the presets are the published sizes. State: the KV cache. With a source, the text
goes on from it in the same row: 0 x1 … xm 0 y1 … yn.

Shapes: B rows, T tokens, S source tokens, D width, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule import kernels
from chainrule.kernels.cpu.int8_linear import Int8Linear, fits, quantise_linears
from chainrule.layers import decode, kv_cache
from chainrule.layers.attention import CrossMemory
from chainrule.layers.blocks import InputEmbedding, TransformerStack, output_projection, reset_output_projection
from chainrule.layers.cross_entropy import chunked_cross_entropy, softcap
from chainrule.layers.embedding import PretrainedVectors
from chainrule.layers.kv_cache import Cache, LayerState
from chainrule.layers.positions import positions_in_documents
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import BOUNDARY, Batch, LanguageModel
from chainrule.settings import Positive

if TYPE_CHECKING:
    from chainrule.defaults.budgets import Budget, CorpusSize


MIN_CHUNK = 256    # tokens


@dataclass(frozen=True)
class DecoderSettings(TransformerSettings, PretrainedVectors):
    tied: bool | None = None    # weight tying: output matrix = embedding; none: where it saves a fifth of the weights
    logit_softcap: Positive | None = None  # logit soft-capping: cap · tanh(logits / cap); none: off


class Decoder(LanguageModel):
    """What GPT and the decoder of an encoder-decoder (transformer.py) have in common."""

    embedding_parameters: ClassVar[tuple[str, ...]] = ("embedding", "stack.bias")
    context: int

    def __init__(self, settings: DecoderSettings, vocab: int, *, cross: bool = False):
        super().__init__()
        self.settings, self.context = settings, settings.context
        self.receptive_field = receptive_field(settings)
        self.embedding = self._make_embedding(settings, nn.Embedding(vocab, settings.width))
        self.stack = TransformerStack(settings, causal=True, cross=cross)
        self.output = output_projection(settings, settings.tied, vocab, self.stack)    # None: tied to the embedding
        self.embedding.reset(tied=self.output is None)
        if self.output is not None:
            reset_output_projection(settings, self.output)

    def _make_embedding(self, settings: Any, tokens: nn.Embedding) -> InputEmbedding:
        return InputEmbedding(settings, tokens)

    @property
    def packs(self) -> bool:    # type: ignore[override]
        """Blocks and shortened keys are counted from the beginning of a row, so with them each document needs one."""
        return {"full", "sliding"} >= {*self.settings.attention_kinds}

    @property
    def embeddings(self) -> Tensor:
        """(V, D): the vectors of the tokens."""
        return self.embedding.tokens.weight

    @property
    def output_matrix(self) -> Tensor:
        """(V, D): the logits are its products with a hidden vector."""
        weight: Tensor = (self.output or self.embedding.tokens).weight
        return weight

    # Training: whole windows at once, without a cache

    def forward(self, batch: Batch) -> Tensor:
        return self.logits(self._hidden(batch))

    def loss(self, batch: Batch, state: Cache | None = None) -> tuple[Tensor, Tensor, Cache | None]:
        hidden, state = (self._hidden(batch), None) if state is None else self.read(batch.tokens, state)
        return *self.loss_from(hidden, batch), state

    def _hidden(self, batch: Batch) -> Tensor:
        """(B, T, D): the hidden vectors of the tokens of a batch."""
        return self.run(batch.tokens, lengths=batch.lengths, documents=batch.documents)[0]

    def run(
        self, tokens: Tensor, sources: Sequence[CrossMemory] = (), more: Tensor | None = None,
        lengths: Tensor | None = None, documents: Tensor | None = None,
    ) -> tuple[Tensor, list[LayerState]]:  # fmt: skip
        """(B, T) from the beginning of a text -> (B, T, D), and each layer's keys and values.

        `more` (B, T, D) is added to the vectors of the tokens; `lengths` (B,): those that are not padding; `documents`
        (B, T): those of packed rows, which do not see each other.
        """
        kv_cache.check_length(tokens.shape[1], self.context)
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        if documents is not None:
            positions = positions_in_documents(documents)
        x = self.embedding(tokens, positions, more)
        hidden, layers = self.stack(x, positions, lengths, sources=sources, documents=documents)
        return hidden, layers

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, V)"""
        logits = linear(hidden, self.embeddings) if self.output is None else self.output(hidden)
        return softcap(logits, self.settings.logit_softcap)

    def loss_from(self, hidden: Tensor, batch: Batch, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`loss` of (B, T, D) hidden vectors, chunk by chunk; `weights` (B, T): those of the targets in the sum."""
        smoothing, cap = self.label_smoothing if self.training else 0.0, self.settings.logit_softcap
        return chunked_cross_entropy(hidden, self.output_matrix, None, batch, cap, weights, smoothing)

    def read_out(self, hidden: Tensor) -> Tensor:
        """(B, T, D) after any block -> (B, T, V): the logits if it were the last one (the logit lens)."""
        return self.logits(self.stack.norm(hidden))

    # Decoding: with the KV cache

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Cache:
        return kv_cache.empty(self.settings, rows, self.embeddings)

    def step(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        if kernels.use_in_decoding(tokens) and decode.supports(self, tokens, state):
            return decode.step(self, tokens, state)
        if decode.supports_cpu(self, tokens, state):
            return decode.cpu_step(self, tokens, state)
        hidden, state = self.read(tokens, state)
        return self.logits(hidden), state

    def next_logits(self, tokens: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        if tokens.shape[1] == 1:
            logits, state = self.step(tokens, state)
            return logits[:, -1], state
        hidden, state = self.read(tokens, state)
        return self.logits(hidden[:, -1]), state

    def read(self, tokens: Tensor, state: Cache, lengths: Tensor | None = None) -> tuple[Tensor, Cache]:
        """(B, T) -> (B, T, D): `step` without the logits. From an empty cache this is the prefill.

        `lengths` (B,), in a prefill: the tokens that are not padding.
        """
        count, sources, kinds = tokens.shape[1], self.sources(state), self.settings.attention_kinds
        length = state["length"] + (count if lengths is None else lengths)
        if kv_cache.capacity(state) == 0:
            hidden, layers = self.run(tokens, sources)
            cache = kv_cache.from_layers(self.stack.cached(layers, length), length, kinds)
            return hidden, kv_cache.grow(state | cache, count, self.context)
        if self.chunk is not None and count > self.chunk:
            return self._read_in_chunks(tokens, state, self.chunk)
        state = kv_cache.ensure(state, count, self.context)
        positions = state["length"][:, None] + torch.arange(count, device=tokens.device)
        caches = kv_cache.layer_caches(state, positions, kinds)
        x = self.embedding(tokens, positions)
        hidden, layers = self.stack(x, positions, caches=caches, sources=sources)
        if torch.is_grad_enabled():
            return hidden, state | kv_cache.from_layers(layers, length, kinds)
        return hidden, {**state, "length": length}

    def _read_in_chunks(self, tokens: Tensor, state: Cache, size: int) -> tuple[Tensor, Cache]:
        """The same, `size` tokens at a time: the masks of layers that see few tokens stay small."""
        kv_cache.check_length(int(state["length"].max()) + tokens.shape[1], self.context)
        parts = []
        for part in torch.split(tokens, size, 1):
            hidden, state = self.read(part, state)
            parts.append(hidden)
        return torch.cat(parts, 1), state

    @property
    def chunk(self) -> int | None:
        """Tokens that are read at once after others; None: any number."""
        spans = [self.settings.span(kind) for kind in self.settings.attention_kinds if kind in kv_cache.RINGS]
        return max(MIN_CHUNK, *spans) if spans else None

    def sources(self, state: Cache) -> Sequence[CrossMemory]:
        """What the cross-attention of each block attends to; empty without cross-attention."""
        return ()

    def quantise(self) -> None:
        """Int8 weights, for decoding on a CPU: after this the model is neither trained nor saved."""
        if self.output is None and fits(self.embeddings):
            self.output = Int8Linear(self.embeddings)  # type: ignore[assignment]  # the embeddings stay as they are
        quantise_linears(self)

    def reserve(self, state: Cache, tokens: int) -> Cache:
        return kv_cache.reserve(state, tokens, self.context)


def receptive_field(settings: TransformerSettings) -> int | None:
    """Tokens back on which a prediction can depend: local layers alone keep to a block, a sliding one adds a window."""
    kinds = settings.attention_kinds
    if not set(kinds) <= set(kv_cache.RINGS):
        return None
    if set(kinds) == {"local"}:
        return settings.span("local")
    return 1 + sum(settings.span(kind) - 1 for kind in kinds)


GPTSettings = DecoderSettings


class GPT(Decoder):
    tasks = ("lm", "classify", "tag", "translate")
    Settings = GPTSettings
    recipe: ClassVar[dict[str, Any]] = {"train.optimizer": "muon"}
    backward = 0

    def __init__(self, settings: GPTSettings, vocab: int):
        super().__init__(settings, vocab)
        self.width = self.inputs = settings.width

    @classmethod
    def candidate_settings(
        cls, widths: Sequence[int], budget: "Budget", corpus: "CorpusSize"
    ) -> list[dict[str, Any]]:
        small, medium = budget.parameters < 5e5, budget.parameters < 5e6
        layers, context = (2, 64) if small else (4, 128) if medium else (6, 256)
        heads = {width: width // (32 if width < 256 else 64) for width in widths}
        fixed: dict[str, Any] = {} if budget.gpu else {"model.attention_dropout": 0.0}    # torch's fused attention
        return [{**fixed, "model.layers": layers, "model.width": width, "model.heads": heads[width],
                 "model.context": context} for width in widths]

    def encode(self, tokens: Tensor, lengths: Tensor | None = None, more: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, D), for heads. The causal mask hides the padding, which comes after all other tokens."""
        return self.run(tokens, more=more, lengths=lengths)[0]

    def start(self, rows: int, source: Tensor | None = None, lengths: Tensor | None = None) -> Cache:
        state = super().start(rows)
        if source is None:
            return state
        return self.read(_shift_right(source), state, lengths)[1]

    def max_tokens(self, source: Tensor | None) -> int:
        return self.context - (0 if source is None else source.shape[1])

    def _hidden(self, batch: Batch) -> Tensor:
        """With a source: the tokens are placed after it in the same row, and only their hidden vectors are returned."""
        if batch.source is None:
            return super()._hidden(batch)
        rows, lengths = _shift_right(batch.source), batch.source_lengths
        if lengths is None:
            lengths = torch.full((len(rows),), rows.shape[1], device=rows.device)
        positions = lengths[:, None] + torch.arange(batch.tokens.shape[1], device=rows.device)         # (B, T)
        joined = torch.cat([rows, torch.full_like(batch.tokens, BOUNDARY)], 1).scatter(1, positions, batch.tokens)
        read = None if batch.lengths is None else lengths + batch.lengths
        hidden, _ = self.run(joined, lengths=read)                                                     # (B, S + T, D)
        return hidden.gather(1, positions[..., None].expand(-1, -1, self.width))


def _shift_right(source: Tensor) -> Tensor:
    """(B, S): x1 … xm 0 as 0 x1 … xm. The source begins with the boundary, and so does the text that follows it."""
    return torch.cat([torch.full_like(source[:, :1], BOUNDARY), source[:, :-1]], 1)

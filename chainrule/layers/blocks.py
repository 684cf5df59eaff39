"""The Transformer: residual blocks of attention and a feed-forward layer, their norms, and the input embedding.

    pre-norm   x ← x + attention(norm(x));   x ← x + feed_forward(norm(x));   one more norm at the end
    post-norm  x ← norm(x + attention(x));   x ← norm(x + feed_forward(x))        (Vaswani et al. 2017)

x is the residual stream. In a pre-norm block the output `delta` of a sub-layer is added where the next norm reads the
sum, so that a GPU can add and norm in one kernel: `x, h = add_norm(x, delta, norm)`. A decoder with a source has
cross-attention between the two sub-layers.

Shapes: B rows, T tokens, S source tokens, C keys, V vocabulary, D width, d numbers in a head.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, relu, rms_norm, silu

from chainrule.device import as_residual, working_dtype
from chainrule.kernels import float8_layers, ops
from chainrule.kernels.cpu.dropout import Dropout
from chainrule.layers.attention import (
    Attention,
    AttentionMask,
    CrossAttention,
    CrossMemory,
    PackedLinear,
    TokenLayout,
    padding_mask,
)
from chainrule.layers.compressed_attention import CompressedAttention
from chainrule.layers.experts import ExpertLinear, Experts
from chainrule.layers.kv_cache import KeysValues, LayerCache, LayerState
from chainrule.layers.local_attention import LocalAttention, SlidingAttention
from chainrule.layers.positions import ALiBi, RelativeBias, Rope, rope_tables, sinusoids
from chainrule.layers.transformer_settings import AttentionKind, TransformerSettings
from chainrule.model import Tap

A = TypeVar("A", bound=Attention | CrossAttention)
Output = nn.Linear | None


# Norms


class RMSNorm(nn.RMSNorm):
    """x / √(mean x² + ε), times a learned scale in the dtype of x, as the fused kernel needs it."""

    def forward(self, x: Tensor) -> Tensor:
        if ops.fuses(x, "rms alone"):
            return ops.norm(x, self.weight, self.eps or torch.finfo(x.dtype).eps)[0]
        return rms_norm(x, self.normalized_shape, None if self.weight is None else self.weight.to(x.dtype), self.eps)


def make_norm(settings: TransformerSettings, size: int) -> nn.Module:
    if settings.norm == "rms":
        return RMSNorm(size, settings.epsilon, settings.norm_scale)
    return nn.LayerNorm(size, settings.epsilon, settings.norm_scale, bias=settings.biases)


def add_norm(x: Tensor, delta: Tensor | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """(B, T, D) the residual stream x + delta, and its norm; in training on a GPU by one kernel."""
    subtract_mean = isinstance(norm, nn.LayerNorm)
    if delta is None or not ops.fuses(x, "layer" if subtract_mean else "rms"):
        x = x if delta is None else x + delta
        return x, norm(x)
    how: Any = norm
    bias = getattr(how, "bias", None)
    x, h, *_ = ops.add_norm(x, delta, how.weight, bias, how.eps, subtract_mean, working_dtype(x))
    return x, h


# The feed-forward layer


def _relu_squared(x: Tensor) -> Tensor:
    x = relu(x)
    return x * x             # autocast would compute a power in float32


_gelu_tanh = partial(gelu, approximate="tanh")


def _gated(x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """A gated linear unit: half of the numbers are gates of the others."""
    gate, value = x.chunk(2, -1)
    return activation(gate) * value


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "relu2": _relu_squared,
    "gelu": gelu,
    "gelu-tanh": _gelu_tanh,                           # as in GPT and GPT-2
    "swiglu": partial(_gated, activation=silu),
    "geglu": partial(_gated, activation=_gelu_tanh),   # as in T5 1.1
}


class FeedForwardLayer(nn.Module):
    """The MLP of a block, for each token by itself: up to a wider vector, an activation, and down again."""

    def __init__(self, settings: TransformerSettings):
        super().__init__()
        self.up = PackedLinear(settings.width, [settings.hidden] * (2 if settings.gated else 1), settings.biases)
        self.out = nn.Linear(settings.hidden, settings.width, settings.biases)
        self.activation_name, self.activation = settings.activation, ACTIVATIONS[settings.activation]
        self.neurons = Tap()                               # (B, T, hidden): the activations

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        fusable = self.activation_name in ops.ACTIVATIONS and not self.neurons.watched
        if fusable and float8_layers.use(x, self.up, self.out):
            return float8_layers.feed_forward(x, self.up, self.out, self.activation_name)
        return float8_layers.linear(self.neurons(self._up(x)), self.out)

    def _up(self, x: Tensor) -> Tensor:
        if float8_layers.use(x, self.up):
            return self.activation(float8_layers.linear(x, self.up))
        if ops.fuses(x, self.activation_name):    # with the bias as one kernel
            return ops.bias_act(linear(x, self.up.weight), self.up.bias, self.activation_name)
        return self.activation(self.up(x))


def make_feed_forward(settings: TransformerSettings) -> FeedForwardLayer | Experts:
    if not settings.experts:
        return FeedForwardLayer(settings)
    shared = FeedForwardLayer(settings) if settings.shared_expert else None
    return Experts(settings, ACTIVATIONS[settings.activation], shared)


# Blocks


class Block(nn.Module):
    """A pre-norm block. `delta`: the output of the last sub-layer, which has not been added to x yet."""

    def __init__(
        self, settings: TransformerSettings, kind: AttentionKind = "full", *, causal: bool = True, cross: bool = False
    ):
        super().__init__()
        self.attention_norm = make_norm(settings, settings.width)
        self.attention = make_attention(settings, kind, causal=causal)
        self.cross_norm = make_norm(settings, settings.width) if cross else None
        self.cross = _attention(CrossAttention, settings) if cross else None
        self.feed_forward_norm = make_norm(settings, settings.width)
        self.feed_forward = make_feed_forward(settings)
        self.dropout = Dropout(settings.dropout)
        self.hidden = Tap()                                # (B, T, D): the residual stream after the block

    def forward(
        self, x: Tensor, delta: Tensor | None, mask: AttentionMask,
        rope: Rope | None = None, cache: LayerCache | None = None, source: CrossMemory | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, LayerState]:  # fmt: skip
        """(B, T, D) x and delta -> those after the block, and the keys and values of its attention.

        `token_mask` (B, T): False at padding, for the losses of a router.
        """
        x, h = add_norm(x, delta, self.attention_norm)
        delta, kv = self.attention(h, mask, rope, cache)
        if self.cross is not None and self.cross_norm is not None:
            x, h = add_norm(x, self.dropout(delta), self.cross_norm)
            delta = self.cross(h, source)
        x, h = add_norm(x, self.dropout(delta), self.feed_forward_norm)
        delta = self.dropout(self.feed(h, token_mask))
        if self.hidden.watched:
            return self.hidden(x + delta), None, kv
        return x, delta, kv

    def feed(self, h: Tensor, token_mask: Tensor | None) -> Tensor:
        """(B, T, D) -> (B, T, D): the output of the feed-forward layer, or of the experts."""
        net = self.feed_forward
        delta: Tensor = net(h, token_mask) if isinstance(net, Experts) else net(h)
        return delta


class PostNormBlock(Block):
    """The block of 2017: each sum is normed, and only its norm goes on, so no delta is left to add."""

    def forward(
        self, x: Tensor, delta: Tensor | None, mask: AttentionMask,
        rope: Rope | None = None, cache: LayerCache | None = None, source: CrossMemory | None = None,
        token_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, LayerState]:  # fmt: skip
        delta, kv = self.attention(x, mask, rope, cache)
        x = as_residual(self.attention_norm(x + self.dropout(delta)))
        if self.cross is not None and self.cross_norm is not None:
            x = as_residual(self.cross_norm(x + self.dropout(self.cross(x, source))))
        x = as_residual(self.feed_forward_norm(x + self.dropout(self.feed(x, token_mask))))
        return self.hidden(x), None, kv


def make_attention(settings: TransformerSettings, kind: AttentionKind, *, causal: bool) -> Attention:
    """Self-attention of the kind that model.attention names. In an encoder a sliding layer attends to all tokens."""
    if kind == "compressed":
        return _attention(CompressedAttention, settings, stride=settings.stride, causal=causal)
    options = {"qkv": settings.qkv}
    if kind == "local" or (kind == "sliding" and causal):
        local = LocalAttention if kind == "local" else SlidingAttention
        return _attention(local, settings, size=settings.span(kind), **options)
    return _attention(Attention, settings, **options)


def _attention(cls: type[A], settings: TransformerSettings, **options: Any) -> A:
    size, norms = settings.head_size, None
    if settings.qk_norm:
        norms = make_norm(settings, size), make_norm(settings, size)
    drop = settings.dropout if settings.attention_dropout is None else settings.attention_dropout
    return cls(
        settings.width, settings.heads, settings.kv_heads, size,
        bias=settings.biases, dropout=drop, norms=norms, scaled=settings.scaled, **options,
    )


class TransformerStack(nn.Module):
    """All blocks, and the last norm. Causal: a decoder; not causal: an encoder, which attends to all of its text."""

    def __init__(self, settings: TransformerSettings, *, causal: bool, cross: bool = False):
        super().__init__()
        self.settings, self.causal, self.sublayers = settings, causal, 3 if cross else 2    # sub-layers of a block
        block = Block if settings.norm_first else PostNormBlock
        self.blocks = nn.ModuleList(
            block(settings, kind, causal=causal, cross=cross) for kind in settings.attention_kinds
        )
        self.norm = make_norm(settings, settings.width) if settings.norm_first else nn.Identity()
        self.bias = self._make_bias()
        self.reset()

    def _make_bias(self) -> nn.Module | None:
        """What the positions add to the scores."""
        if self.settings.positions == "alibi":
            return ALiBi(self.settings.heads)
        relative = self.settings.positions == "relative"
        return RelativeBias(self.settings.heads, bidirectional=not self.causal) if relative else None

    def reset(self) -> None:
        """Initial weights. Those of output projections, which add to the residual stream, are 0, or small."""
        settings, added = self.settings, self.sublayers * len(self.blocks)
        shrink = math.sqrt(added) if settings.norm_first else 1.0
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | ExpertLinear):
                adds = name.endswith(".out")
                deviation = settings.init or 1 / math.sqrt(module.in_features)
                deviation = 0.0 if adds and settings.zero_init else deviation / (shrink if adds else 1)
                nn.init.normal_(module.weight, std=deviation)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        lengths: Tensor | None = None,
        caches: Sequence[LayerCache] = (),
        sources: Sequence[CrossMemory] = (),
        documents: Tensor | None = None,
        part: slice = slice(None),
    ) -> tuple[Tensor, list[LayerState]]:
        """(B, T, D) at positions (B or 1, T) -> (B, T, D), and each layer's keys and values.

        `lengths` (B,): the tokens that are not padding: an encoder attends to these, and the losses of a router count
        them. A cache and a source for each block, or none. `documents` (B, T), without a cache: the document of each
        token of a packed row; a token attends to those of its own document. `part`: the blocks that are run; if it has
        an end, the residual stream behind them is returned, and another call may go on with the others.
        """
        settings, dtype = self.settings, working_dtype(x)
        places = positions if documents is None else torch.arange(x.shape[1], device=x.device)[None]    # in the row
        layout = self.layout(places, len(x), dtype, lengths, documents)
        masks: dict[tuple[str, bool], AttentionMask] = {}
        rope = None
        if settings.positions == "rotary":
            rope = rope_tables(positions, settings.head_size, settings.rope_theta, dtype, settings.rope)
        every_cache: Iterable[LayerCache | None] = caches or repeat(None)
        every_source: Iterable[CrossMemory | None] = sources or repeat(None)
        token_mask = None
        if settings.experts and lengths is not None:
            token_mask = padding_mask(lengths, x.shape[1]).flatten(1)              # (B, T)
        delta, layers = None, []
        for block, cache, source in zip(self.blocks[part], every_cache, every_source):
            attention: Any = block.attention
            how = attention.kind, attention.pattern.watched
            if how not in masks:
                masks[how] = attention.mask(layout, cache, whole=attention.pattern.watched).as_bias(dtype)
            x, delta, kv = block(x, delta, masks[how], rope, cache, source, token_mask)
            layers.append(kv)
        if part.stop is not None:
            return x if delta is None else x + delta, layers
        return add_norm(x, delta, self.norm)[1], layers

    def layout(
        self, positions: Tensor, rows: int = 1, dtype: torch.dtype = torch.float32,
        lengths: Tensor | None = None, documents: Tensor | None = None,
    ) -> TokenLayout:  # fmt: skip
        """Tokens at these positions, from which the attention of each block makes its mask."""
        padding = None if self.causal else lengths           # in a decoder it comes after all that is attended to
        return TokenLayout(positions, rows, self.causal, dtype, padding, documents, self.bias)

    def cached(self, layers: Sequence[LayerState], length: Tensor) -> list[LayerState]:
        """What the KV cache keeps of each layer, of texts of `length` (B,) tokens, read from their beginning."""
        blocks: Iterable[Any] = self.blocks
        return [block.attention.cached(layer, length) for block, layer in zip(blocks, layers)]

    def source_keys_values(self, source: Tensor) -> list[KeysValues]:
        """(B, S, D) -> the keys and values of the source for the cross-attention of each block."""
        return [module.keys_values(source) for module in self.modules() if isinstance(module, CrossAttention)]


# The two ends: the input embedding and the output projection


class InputEmbedding(nn.Module):
    """Tokens as vectors, with learned or sinusoidal positions added where the settings ask for them."""

    def __init__(self, settings: TransformerSettings, tokens: nn.Embedding | nn.Linear):
        super().__init__()
        self.settings = settings
        self.tokens = tokens                               # a linear map, where vectors are read instead of tokens
        self.positions = nn.Embedding(settings.context, settings.width) if settings.positions == "learned" else None
        self.norm = make_norm(settings, settings.width) if settings.norm_embedding else nn.Identity()
        self.dropout = Dropout(settings.dropout)

    def forward(self, tokens: Tensor, positions: Tensor, more: Tensor | None = None) -> Tensor:
        """(B, T) or (B, T, F), (B or 1, T) -> (B, T, D); `more` (B, T, D) is added to the vectors of the tokens."""
        x: Tensor = self.tokens(tokens)
        if more is not None:
            x = x + more
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.settings.positions == "sinusoidal":
            x = x * math.sqrt(self.settings.width) + sinusoids(positions, self.settings.width).to(x.dtype)
        return as_residual(self.dropout(self.norm(x)))

    def reset(self, *, tied: bool) -> None:
        """Initial vectors. They are small where they are also the output matrix, or are scaled up in `forward`."""
        settings = self.settings
        small = tied or settings.positions == "sinusoidal"
        deviation = settings.init or (1 / math.sqrt(settings.width) if small else 1.0)
        if isinstance(self.tokens, nn.Linear):
            deviation /= math.sqrt(self.tokens.in_features)
            nn.init.zeros_(self.tokens.bias)
        nn.init.normal_(self.tokens.weight, std=deviation)
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=settings.init or 0.02)


def output_projection(settings: TransformerSettings, tied: bool | None, vocab: int, stack: nn.Module) -> Output:
    """Hidden vectors to logits; None: weight tying with the embedding, if asked for or if it saves many parameters."""
    parameters = sum(parameter.numel() for parameter in stack.parameters())
    tied = 4 * vocab * settings.width > parameters if tied is None else tied
    return None if tied else nn.Linear(settings.width, vocab, bias=False)


def reset_output_projection(settings: TransformerSettings, output: nn.Linear) -> None:
    nn.init.normal_(output.weight, std=0.0 if settings.zero_init else settings.init or 1 / math.sqrt(settings.width))

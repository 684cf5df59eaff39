"""The Transformer: blocks pass a vector a token upward, and each adds what attention and a feed-forward net find.

    pre-norm   x ← x + attention(norm(x));   x ← x + feed_forward(norm(x))       a last norm on top
    post-norm  x ← norm(x + attention(x));   x ← norm(x + feed_forward(x))       (Vaswani et al. 2017)

What a part finds is added where the sum is next normed, so that a GPU can do both at once (joined.py). A decoder sees
what is behind a token, an encoder all of its text. A decoder with a source looks at it between the two, by cross
attention: every part of it, wherever the token stands.

Shapes: B rows, T tokens, C keys, V vocabulary, D width, d numbers in a head.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, relu, rms_norm, silu

from chainrule import kernels
from chainrule.device import as_residual, working_dtype
from chainrule.kernels.ops import bent
from chainrule.layers.attention import (
    Attention,
    CrossAttention,
    CrossMemory,
    Mask,
    PackedLinear,
    causal_mask,
    padding_mask,
)
from chainrule.layers.kv_cache import LayerCache, Pair
from chainrule.layers.norm import Sum
from chainrule.layers.positions import RelativeBias, Rope, rope_tables, sinusoids
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import Tap

A = TypeVar("A", Attention, CrossAttention)


def _relu_squared(x: Tensor) -> Tensor:
    x = relu(x)
    return x * x             # autocast would raise a power in float32


def _swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return silu(gate) * value


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "relu2": _relu_squared,
    "gelu": gelu,
    "gelu-tanh": partial(gelu, approximate="tanh"),    # as GPT and GPT-2 have it
    "swiglu": _swiglu,
}


class RMSNorm(nn.RMSNorm):
    """With gains in the precision of what is normed, which the fused kernel wants."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, None if self.weight is None else self.weight.to(x.dtype), self.eps)


def make_norm(settings: TransformerSettings, size: int) -> nn.Module:
    if settings.norm == "rms":
        return RMSNorm(size, settings.epsilon, settings.norm_scale)
    return nn.LayerNorm(size, settings.epsilon, settings.norm_scale, bias=settings.biases)


class Embedding(nn.Module):
    """What is read as vectors, and where it stands if that is told here."""

    def __init__(self, settings: TransformerSettings, words: nn.Embedding | nn.Linear):
        super().__init__()
        self.settings = settings
        self.words = words                                 # tokens are looked up; vectors go through a linear map
        self.places = nn.Embedding(settings.context, settings.width) if settings.positions == "learned" else None
        self.norm = make_norm(settings, settings.width) if settings.norm_embedding else nn.Identity()
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, tokens: Tensor, places: Tensor, more: Tensor | None = None) -> Tensor:
        """(B, T) or (B, T, F), (B or 1, T) -> (B, T, D); `more` (B, T, D) is added to the vectors of the words."""
        x: Tensor = self.words(tokens)
        if more is not None:
            x = x + more
        if self.places is not None:
            x = x + self.places(places)
        if self.settings.positions == "sinusoidal":
            x = x * math.sqrt(self.settings.width) + sinusoids(places, self.settings.width).to(x.dtype)
        return as_residual(self.dropout(self.norm(x)))

    def reset(self, *, compared: bool) -> None:
        """First vectors. Those that the output is compared with, or that are scaled up on the way in, must be small."""
        settings = self.settings
        small = compared or settings.positions == "sinusoidal"
        deviation = settings.init or (1 / math.sqrt(settings.width) if small else 1.0)
        if isinstance(self.words, nn.Linear):
            deviation /= math.sqrt(self.words.in_features)
            nn.init.zeros_(self.words.bias)
        nn.init.normal_(self.words.weight, std=deviation)
        if self.places is not None:
            nn.init.normal_(self.places.weight, std=settings.init or 0.02)


def make_output(settings: TransformerSettings, tied: bool | None, vocab: int, stack: nn.Module) -> nn.Linear | None:
    """What vectors are compared with to foretell words; None: the words themselves, if asked, or if that saves much."""
    blocks = sum(parameter.numel() for parameter in stack.parameters())
    tied = 4 * vocab * settings.width > blocks if tied is None else tied
    return None if tied else nn.Linear(settings.width, vocab, bias=False)


def reset_output(settings: TransformerSettings, output: nn.Linear) -> None:
    nn.init.normal_(output.weight, std=0.0 if settings.zero_init else settings.init or 1 / math.sqrt(settings.width))


class FeedForwardLayer(nn.Module):
    """Each token by itself: up into a wider space, an activation, and down again."""

    def __init__(self, settings: TransformerSettings):
        super().__init__()
        gated = settings.activation == "swiglu"
        self.up = PackedLinear(settings.width, [settings.hidden] * (2 if gated else 1), settings.biases)
        self.out = nn.Linear(settings.hidden, settings.width, settings.biases)
        self.named, self.activation = settings.activation, ACTIVATIONS[settings.activation]
        self.neurons = Tap()                               # (B, T, hidden): how much each fires

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        down: Tensor = self.out(self.neurons(self._up(x)))
        return down

    def _up(self, x: Tensor) -> Tensor:
        if kernels.use_in_training(x):
            return bent(linear(x, self.up.weight), self.up.bias, self.named)
        return self.activation(self.up(x))


class Block(nn.Module):
    def __init__(self, settings: TransformerSettings, *, cross: bool = False):
        super().__init__()
        self.norm_first = settings.norm_first
        self.attention_norm = make_norm(settings, settings.width)
        self.attention = _make(Attention, settings)
        self.cross_norm = make_norm(settings, settings.width) if cross else None
        self.cross = _make(CrossAttention, settings) if cross else None
        self.feed_forward_norm = make_norm(settings, settings.width)
        self.feed_forward = FeedForwardLayer(settings)
        self.dropout = nn.Dropout(settings.dropout)
        self.hidden = Tap()                                # (B, T, D): what goes up to the next block

    def forward(
        self,
        below: Sum,
        sight: Mask,
        rope_tables: Rope | None = None,
        past: LayerCache | None = None,
        source: CrossMemory | None = None,
    ) -> tuple[Sum, Pair]:
        """(B, T, D) -> (B, T, D), and the keys and values that were looked at."""
        x, seen = self._before(self.attention_norm, below)
        found, pair = self.attention(seen, sight, rope_tables, past)
        total = self._after(self.attention_norm, x, found)
        if self.cross is not None and self.cross_norm is not None:
            x, seen = self._before(self.cross_norm, total)
            total = self._after(self.cross_norm, x, self.cross(seen, source))
        x, seen = self._before(self.feed_forward_norm, total)
        total = self._after(self.feed_forward_norm, x, self.feed_forward(seen))
        return (Sum(self.hidden(total.made())) if self.hidden.watched else total), pair

    def _before(self, norm: nn.Module, total: Sum) -> tuple[Tensor, Tensor]:
        """The stream, and what a part sees of it."""
        return total.normed(norm) if self.norm_first else (total.stream, total.stream)

    def _after(self, norm: nn.Module, x: Tensor, found: Tensor) -> Sum:
        """The stream, and what a part found, which is not added yet; but a norm that comes behind the sum is made."""
        total = Sum(x, self.dropout(found))
        return total if self.norm_first else Sum(as_residual(norm(total.made())))


def _make(kind: type[A], settings: TransformerSettings) -> A:
    """Attention of one kind or the other, as the settings say."""
    size, norms = settings.head_size, None
    if settings.qk_norm:
        norms = make_norm(settings, size), make_norm(settings, size)
    return kind(
        settings.width, settings.heads, settings.kv_heads, size,
        bias=settings.biases, dropout=settings.dropout, norms=norms,
    )


class TransformerStack(nn.Module):
    """Blocks one upon another, all of whose tokens see the same."""

    def __init__(self, settings: TransformerSettings, *, causal: bool, cross: bool = False):
        super().__init__()
        self.settings, self.causal, self.parts = settings, causal, 3 if cross else 2    # parts of a block
        self.blocks = nn.ModuleList(Block(settings, cross=cross) for _ in range(settings.layers))
        self.norm = make_norm(settings, settings.width) if settings.norm_first else nn.Identity()
        self.bias = RelativeBias(settings.heads, both_ways=not causal) if settings.positions == "relative" else None
        self.reset()

    def reset(self) -> None:
        """First weights; those that lead back into the stream are nothing, or less the more of them add up."""
        settings, added = self.settings, self.parts * len(self.blocks)
        last = math.sqrt(added) if settings.norm_first else 1.0
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                back = name.endswith(".out")
                deviation = settings.init or 1 / math.sqrt(module.in_features)
                deviation = 0.0 if back and settings.zero_init else deviation / (last if back else 1)
                nn.init.normal_(module.weight, std=deviation)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self,
        x: Tensor,
        places: Tensor,
        lengths: Tensor | None = None,
        past: Sequence[LayerCache] = (),
        source: Sequence[CrossMemory] = (),
    ) -> tuple[Tensor, list[Pair]]:
        """(B, T, D) at places (B or 1, T), `lengths` (B,) of them real -> (B, T, D), and what each layer looked at."""
        settings = self.settings
        sight = self.sight(places, past[0].keys.shape[2] if past else None, lengths).added(working_dtype(x))
        spin = None
        if settings.positions == "rotary":
            spin = rope_tables(places, settings.head_size, settings.rope_theta, working_dtype(x))
        pairs = []
        layers: Iterable[LayerCache | None] = past or repeat(None)
        sources: Iterable[CrossMemory | None] = source or repeat(None)
        total = Sum(x)
        for block, layer, about in zip(self.blocks, layers, sources):
            total, pair = block(total, sight, spin, layer, about)
            pairs.append(pair)
        return total.normed(self.norm)[1], pairs

    def remember(self, source: Tensor) -> list[Pair]:
        """(B, S, D) -> the keys and values that each layer's cross attention has of it."""
        return [module.remember(source) for module in self.modules() if isinstance(module, CrossAttention)]

    def sight(self, places: Tensor, cached: int | None = None, lengths: Tensor | None = None) -> Mask:
        """What tokens at these places see of each other, or of so many cached keys. No mask where none is needed."""
        tokens = places.shape[1]
        if self.causal and cached is None and self.bias is None and (self.settings.window or tokens) >= tokens:
            return Mask(causal=True)
        key, seen = torch.arange(cached or tokens, device=places.device), None
        if self.causal:
            seen = causal_mask(places, key, self.settings.window)                       # (B, 1, T, C)
        elif lengths is not None:
            seen = padding_mask(lengths, tokens)                                           # (B, 1, 1, C)
        if self.bias is None:
            return Mask(seen)
        bias = self.bias(places, key)                                              # (B, H, T, C)
        return Mask(bias if seen is None else bias.masked_fill(~seen, -math.inf))

"""The Transformer: blocks pass a vector a token upward, and each adds what attention and a feed-forward net find.

    pre-norm   x ← x + attention(norm(x));   x ← x + feed_forward(norm(x))       a last norm on top
    post-norm  x ← norm(x + attention(x));   x ← norm(x + feed_forward(x))       (Vaswani et al. 2017)

A decoder sees what is behind a token, an encoder all of its text.

Shapes: B rows, T tokens, C keys, V vocabulary, D width, d numbers in a head.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, rms_norm, silu

from chainrule.model import Tap
from chainrule.models.attention import Attention, Sight, behind
from chainrule.models.cache import Layer, Pair
from chainrule.models.choices import TransformerSettings
from chainrule.models.positions import RelativeBias, Turns, sinusoids, turns


def _swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return silu(gate) * value


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "relu2": lambda x: relu(x).square(),
    "gelu": gelu,
    "gelu-tanh": lambda x: gelu(x, approximate="tanh"),    # as GPT and GPT-2 have it
    "swiglu": _swiglu,
}


class RMSNorm(nn.RMSNorm):
    """With gains in the precision of what is normed, which the fused kernel wants."""

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.normalized_shape, None if self.weight is None else self.weight.to(x.dtype), self.eps)


def make_norm(settings: TransformerSettings, size: int) -> nn.Module:
    if settings.norm == "rms":
        return RMSNorm(size, settings.epsilon, settings.gains)
    return nn.LayerNorm(size, settings.epsilon, settings.gains, bias=settings.biases)


class Embedding(nn.Module):
    """Tokens as vectors, and where they stand if that is told here."""

    def __init__(self, settings: TransformerSettings, vocab: int):
        super().__init__()
        self.settings = settings
        self.words = nn.Embedding(vocab, settings.width)
        self.places = nn.Embedding(settings.context, settings.width) if settings.positions == "learned" else None
        self.norm = make_norm(settings, settings.width) if settings.norm_embedding else nn.Identity()
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """(B, T), (B, T) -> (B, T, D)"""
        x: Tensor = self.words(tokens)
        if self.places is not None:
            x = x + self.places(places)
        if self.settings.positions == "sinusoidal":
            x = x * math.sqrt(self.settings.width) + sinusoids(places, self.settings.width)
        out: Tensor = self.dropout(self.norm(x))
        return out


class FeedForward(nn.Module):
    """Each token by itself: up into a wider space, an activation, and down again."""

    def __init__(self, settings: TransformerSettings):
        super().__init__()
        self.parts = [settings.hidden] * (2 if settings.activation == "swiglu" else 1)    # rows of the matrix up
        self.up = nn.Linear(settings.width, sum(self.parts), settings.biases)
        self.out = nn.Linear(settings.hidden, settings.width, settings.biases)
        self.activation = ACTIVATIONS[settings.activation]
        self.neurons = Tap()                               # (B, T, hidden): how much each fires

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.out(self.neurons(self.activation(self.up(x))))
        return down


class Block(nn.Module):
    def __init__(self, settings: TransformerSettings):
        super().__init__()
        size, norms = settings.head_size, None
        if settings.qk_norm:
            norms = make_norm(settings, size), make_norm(settings, size)
        self.norm_first = settings.norm_first
        self.attention_norm = make_norm(settings, settings.width)
        self.attention = Attention(
            settings.width, settings.heads, settings.keys, size,
            bias=settings.biases, dropout=settings.dropout, norms=norms,
        )
        self.feed_forward_norm = make_norm(settings, settings.width)
        self.feed_forward = FeedForward(settings)
        self.dropout = nn.Dropout(settings.dropout)
        self.hidden = Tap()                                # (B, T, D): what goes up to the next block

    def forward(
        self, x: Tensor, sight: Sight, turns: Turns | None = None, past: Layer | None = None
    ) -> tuple[Tensor, Pair]:
        """(B, T, D) -> (B, T, D), and the keys and values that were looked at."""
        if self.norm_first:
            found, pair = self.attention(self.attention_norm(x), sight, turns, past)
            x = x + self.dropout(found)
            x = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        else:
            found, pair = self.attention(x, sight, turns, past)
            x = self.attention_norm(x + self.dropout(found))
            x = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return self.hidden(x), pair


class Stack(nn.Module):
    """Blocks one upon another, all of whose tokens see the same."""

    def __init__(self, settings: TransformerSettings, *, causal: bool):
        super().__init__()
        self.settings, self.causal = settings, causal
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = make_norm(settings, settings.width) if settings.norm_first else nn.Identity()
        self.bias = RelativeBias(settings.heads, both_ways=not causal) if settings.positions == "relative" else None
        self.reset()

    def reset(self) -> None:
        """First weights; those that lead back into the stream are nothing, or less the more of them add up."""
        settings, last = self.settings, math.sqrt(2 * len(self.blocks)) if self.settings.norm_first else 1.0
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                back = name.endswith(".out")
                deviation = settings.init or 1 / math.sqrt(module.in_features)
                nn.init.normal_(module.weight, std=0.0 if back and settings.zero else deviation / (last if back else 1))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self,
        x: Tensor,
        places: Tensor,
        lengths: Tensor | None = None,
        past: Sequence[Layer] = (),
    ) -> tuple[Tensor, list[Pair]]:
        """(B, T, D) at places (B or 1, T), `lengths` (B,) of them real -> (B, T, D), and what each layer looked at."""
        settings = self.settings
        sight = self.sight(places, past[0].keys.shape[2] if past else None, lengths)
        spin = turns(places, settings.head_size, settings.wavelength) if settings.positions == "rotary" else None
        pairs = []
        layers: Iterable[Layer | None] = past or repeat(None)
        for block, layer in zip(self.blocks, layers):
            x, pair = block(x, sight, spin, layer)
            pairs.append(pair)
        return self.norm(x), pairs

    def sight(self, places: Tensor, cached: int | None = None, lengths: Tensor | None = None) -> Sight:
        """What tokens at these places see of each other, or of so many cached keys. No mask where none is needed."""
        tokens = places.shape[1]
        if self.causal and cached is None and self.bias is None and (self.settings.window or tokens) >= tokens:
            return Sight(causal=True)
        key, seen = torch.arange(cached or tokens, device=places.device), None
        if self.causal:
            seen = behind(places, key, self.settings.window)                       # (B, 1, T, C)
        elif lengths is not None:
            seen = (key < lengths[:, None])[:, None, None]                         # (B, 1, 1, C)
        if self.bias is None:
            return Sight(seen)
        bias = self.bias(places, key)                                              # (B, H, T, C)
        return Sight(bias if seen is None else bias.masked_fill(~seen, -math.inf))

"""Attention, a fuzzy look-up: a token asks (q) all that it may see (k), and takes a mixture of what they hold (v).

    X' = softmax(Q Kᵀ / √d + M) V        M = 0 where a query may see a key, -∞ where not

Torch's fused kernels do it, and never hold the pattern; where somebody watches the pattern it is written out. Keys and
values that were read before come from a cache, each at its token's place, so rows may differ in length.

Shapes: B rows, T queries, C keys, D width, H heads of queries, G heads of keys, d numbers in a head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, autocast, nn, split
from torch.nn.functional import dropout, scaled_dot_product_attention

from chainrule.layers import norm
from chainrule.layers.kv_cache import LayerCache, Pair
from chainrule.layers.positions import Rope, apply_rope
from chainrule.model import Tap

# Several linear maps of one vector, made by one product: the rows of each lie under those of the one before.

class PackedLinear(nn.Linear):
    def __init__(self, width: int, parts: Sequence[int], bias: bool):
        super().__init__(width, sum(parts), bias)
        self.parts = list(parts)    # rows of each map


@dataclass(frozen=True)
class Mask:
    """What a query may see."""

    mask: Tensor | None = None    # (B or 1, H or 1, T, C): True where it sees, or a number that is added to the score
    causal: bool = False          # without a mask: the keys that are not after it, of the same tokens

    def added(self, dtype: torch.dtype) -> "Mask":
        """The same as numbers that are added, which fused kernels would otherwise make of it in every layer."""
        if self.mask is None or self.mask.dtype != torch.bool:
            return self
        return Mask(torch.zeros_like(self.mask, dtype=dtype).masked_fill(~self.mask, -math.inf))

    def as_mask(self, queries: int, device: torch.device) -> Tensor | None:
        if self.mask is not None or not self.causal:
            return self.mask
        return torch.ones(queries, queries, dtype=torch.bool, device=device).tril()


def causal_mask(places: Tensor, keys: Tensor, window: int | None = None) -> Tensor:
    """(B, T), (C,) -> (B, 1, T, C): True for a key at the query's own place or before it, within the window."""
    distance = places[:, None, :, None] - keys
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def padding_mask(lengths: Tensor, keys: int) -> Tensor:
    """(B,) -> (B, 1, 1, C): True for a key that is no padding."""
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None]


class Attention(nn.Module):
    """Queries, keys and values of the same tokens."""

    def __init__(
        self,
        width: int,
        heads: int,
        keys: int,                 # heads of keys and values: each serves heads / keys heads of queries
        size: int,                 # numbers in a head
        *,
        bias: bool = False,
        dropout: float = 0.0,      # share of the pattern that is dropped while learning
        norms: tuple[nn.Module, nn.Module] | None = None,    # of queries and of keys, before they meet
    ):
        super().__init__()
        self.heads, self.keys, self.size, self.dropout = heads, keys, size, dropout
        self.project = PackedLinear(width, [heads * size, keys * size, keys * size], bias)    # queries, keys, values
        self.out = nn.Linear(heads * size, width, bias)
        self.norms = nn.ModuleList(norms or ())
        self.pattern = Tap()                        # (B, H, T, C): how much of each key a query takes

    def forward(
        self, x: Tensor, sight: Mask, rope: Rope | None = None, past: LayerCache | None = None
    ) -> tuple[Tensor, Pair]:
        """(B, T, D) -> (B, T, D), and the keys and values that were looked at."""
        query, key, value = (part.transpose(1, 2) for part in self._in_heads(self.project(x), rope))
        if past is not None:
            key, value = past.write(key, value)
        mixed = mix(query, key, value, sight, self.dropout if self.training else 0.0, self.pattern)
        return self.out(mixed.transpose(1, 2).flatten(2)), (key, value)

    def _in_heads(self, product: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, (H + 2G)d) -> queries (B, T, H, d), keys and values (B, T, G, d), normed and turned."""
        if norm.joins_heads(product, self.size, self.norms, rope):
            return norm.heads(product, self.heads, self.keys, self.norms, rope)
        parts = split(product, self.project.parts, -1)
        query, key, value = (part.view(*part.shape[:2], -1, self.size) for part in parts)
        if self.norms:
            query, key = self.norms[0](query).type_as(value), self.norms[1](key).type_as(value)
        if rope is not None:
            query, key = apply_rope(query, rope), apply_rope(key, rope)
        return query, key, value


@dataclass(frozen=True)
class CrossMemory:
    """What one layer knows of what a text is about."""

    keys: Tensor        # (B, G, S, d)
    values: Tensor      # (B, G, S, d)
    sight: Mask        # which of them are no padding; no query is before or behind another here


class CrossAttention(nn.Module):
    """Queries of a text; keys and values of its source, which are made once. Arguments as above."""

    def __init__(
        self,
        width: int,
        heads: int,
        keys: int,
        size: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        norms: tuple[nn.Module, nn.Module] | None = None,
    ):
        super().__init__()
        self.size, self.dropout = size, dropout
        self.queries = nn.Linear(width, heads * size, bias)
        self.memory = PackedLinear(width, [keys * size] * 2, bias)    # keys, values
        self.out = nn.Linear(heads * size, width, bias)
        self.norms = nn.ModuleList(norms or ())
        self.pattern = Tap()                        # (B, H, T, S): how much of each part of the source a token takes

    def remember(self, source: Tensor) -> Pair:
        """(B, S, D) -> its keys and values."""
        key, value = (in_heads(part, self.size) for part in self.memory(source).chunk(2, -1))
        return self.norms[1](key).type_as(value) if self.norms else key, value

    def forward(self, x: Tensor, source: CrossMemory) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        query = in_heads(self.queries(x), self.size)
        if self.norms:
            query = self.norms[0](query).type_as(source.values)
        drop = self.dropout if self.training else 0.0
        mixed = mix(query, source.keys, source.values, source.sight, drop, self.pattern)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def in_heads(x: Tensor, size: int) -> Tensor:
    """(B, T, H·d) -> (B, H, T, d)"""
    return x.view(*x.shape[:2], -1, size).transpose(1, 2)


def mix(query: Tensor, key: Tensor, value: Tensor, sight: Mask, drop: float, pattern: Tap) -> Tensor:
    """(B, H, T, d): values by how well their keys answer the queries."""
    if pattern.watched:
        return attend(query, key, value, sight, drop, pattern)
    if query.dtype == torch.bfloat16 and query.device.type == "cpu" and torch.is_grad_enabled():
        with autocast("cpu", enabled=False):    # going back through torch's kernel in bfloat16 is many times slower
            return mix(query.float(), key.float(), value.float(), sight, drop, pattern).to(query.dtype)
    mask = sight.mask if sight.mask is None or sight.mask.dtype == torch.bool else sight.mask.to(query.dtype)
    shared = key.shape[1] != query.shape[1]
    return scaled_dot_product_attention(
        query, key, value, mask, drop, sight.causal and mask is None, enable_gqa=shared
    )


def attend(query: Tensor, key: Tensor, value: Tensor, sight: Mask, drop: float, pattern: Tap) -> Tensor:
    """The formula above, written out."""
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = (query @ key.mT).float() / math.sqrt(query.shape[-1])
    mask = sight.as_mask(query.shape[2], query.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return dropout(pattern(scores.softmax(-1)), drop).to(value.dtype) @ value

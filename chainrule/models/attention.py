"""Attention, a fuzzy look-up: a token asks (q) all that it may see (k), and takes a mixture of what they hold (v).

    X' = softmax(Q Kᵀ / √d + M) V        M = 0 where a query may see a key, -∞ where not

Torch's fused kernels do it, and never hold the pattern; where somebody watches the pattern it is written out. Keys and
values that were read before come from a cache, each at its token's place, so rows may differ in length.

Shapes: B rows, T queries, C keys, D width, H heads of queries, G heads of keys, d numbers in a head.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from chainrule.model import Tap
from chainrule.models.cache import Layer, Pair
from chainrule.models.positions import Turns, turned


@dataclass(frozen=True)
class Sight:
    """What a query may see."""

    mask: Tensor | None = None    # (B or 1, H or 1, T, C): True where it sees, or a number that is added to the score
    causal: bool = False          # without a mask: the keys that are not after it, of the same tokens

    def as_mask(self, queries: int, device: torch.device) -> Tensor | None:
        if self.mask is not None or not self.causal:
            return self.mask
        return torch.ones(queries, queries, dtype=torch.bool, device=device).tril()


def behind(places: Tensor, keys: Tensor, window: int | None = None) -> Tensor:
    """(B, T), (C,) -> (B, 1, T, C): True for a key at the query's own place or before it, within the window."""
    distance = places[:, None, :, None] - keys
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


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
        self.parts = [heads * size, keys * size, keys * size]    # rows of the one matrix that makes q, k and v
        self.project = nn.Linear(width, sum(self.parts), bias)
        self.out = nn.Linear(heads * size, width, bias)
        self.norms = nn.ModuleList(norms or ())
        self.pattern = Tap()                        # (B, H, T, C): how much of each key a query takes

    def forward(
        self, x: Tensor, sight: Sight, turns: Turns | None = None, past: Layer | None = None
    ) -> tuple[Tensor, Pair]:
        """(B, T, D) -> (B, T, D), and the keys and values that were looked at."""
        query, key, value = (self._heads(part) for part in self.project(x).split(self.parts, -1))
        if self.norms:
            query, key = self.norms[0](query).type_as(value), self.norms[1](key).type_as(value)
        if turns is not None:
            query, key = turned(query, turns), turned(key, turns)
        if past is not None:
            key, value = past.write(key, value)
        mixed = self.mix(query, key, value, sight)
        return self.out(mixed.transpose(1, 2).flatten(2)), (key, value)

    def mix(self, query: Tensor, key: Tensor, value: Tensor, sight: Sight) -> Tensor:
        """(B, H, T, d): values by how well their keys answer the queries."""
        drop = self.dropout if self.training else 0.0
        if self.pattern.watched:
            return attend(query, key, value, sight, drop, self.pattern)
        mask = sight.mask if sight.mask is None or sight.mask.dtype == torch.bool else sight.mask.to(query.dtype)
        return scaled_dot_product_attention(
            query, key, value, mask, drop, sight.causal and mask is None, enable_gqa=self.keys != self.heads
        )

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.size).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, sight: Sight, drop: float, pattern: Tap) -> Tensor:
    """The formula above, written out."""
    share = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = (query @ key.mT).float() / math.sqrt(query.shape[-1])
    mask = sight.as_mask(query.shape[2], query.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return dropout(pattern(scores.softmax(-1)), drop).to(value.dtype) @ value

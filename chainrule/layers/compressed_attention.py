"""Memory-compressed attention (Liu et al. 2018, T-DMCA): keys and values are shortened by a strided convolution.

    k'_i = W [k_{3i}; k_{3i+1}; k_{3i+2}]        a convolution of kernel 3 and stride 3; values in the same way

QK norm and RoPE come after it. In a decoder a query attends to the keys all of whose tokens are at or before its own,
and such a key has the position of its last token; in an encoder it attends to all, and a key has the position of its
first token. A null key and value, which are zeros, are always visible: a query before the first whole group gets zeros.

With s tokens to a key, s neighbouring queries see the same keys: queries 3i+2, 3i+3 and 3i+4 see i+1 of them. So causal
attention is s causal attentions over T/s tokens each, which need no mask tensor.

Shapes: B rows, T tokens, s stride, M keys, H query heads, G key/value heads, d numbers in a head.
"""

from typing import Any

import torch
from torch import Tensor, nn, split
from torch.nn.functional import pad

from chainrule.layers.attention import Attention, AttentionMask, TokenLayout, causal_mask
from chainrule.layers.kv_cache import CompressedCache, LayerCache, LayerState, compressed_capacity
from chainrule.layers.positions import Rope
from chainrule.model import Tap


class CompressedAttention(Attention):
    """Self-attention with one key and value for each `stride` tokens. Other arguments as for Attention."""

    kind = "compressed"

    def __init__(self, *sizes: int, stride: int, causal: bool, bias: bool = False, **options: Any):
        super().__init__(*sizes, bias=bias, **options)
        self.stride, self.causal = stride, causal
        size = self.kv_heads * self.head_size
        self.compress_keys = nn.Linear(stride * size, size, bias)      # kernel = stride: a linear map of each group
        self.compress_values = nn.Linear(stride * size, size, bias)

    def forward(
        self, x: Tensor, mask: AttentionMask, rope: Rope | None = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, LayerState]:
        """(B, T, D) -> (B, T, D); and keys, values and the tokens before compression, or the cache after them."""
        packed = self._project(x)
        query, tokens = split(packed, [self.parts[0], sum(self.parts[1:])], -1)
        query = self._place(0, query, rope)                                                    # (B, T, H, d)
        if cache is not None:
            assert isinstance(cache, CompressedCache)
            groups, last = cache.groups(tokens)
            state = cache.store(*self._compress(groups, _rope_at(rope, last)), tokens)
        else:
            state = *self._compress_all(tokens, mask, rope), tokens
        return self._out(self._mix(query, state[0], state[1], mask, cached=cache is not None)), state

    def mask(self, layout: TokenLayout, cache: LayerCache | None = None, *, whole: bool = False) -> AttentionMask:
        if layout.plain and cache is None and not whole:
            return AttentionMask(causal=True)
        device, s = layout.positions.device, self.stride
        if not layout.causal:
            starts = s * torch.arange(-1, -(-layout.tokens // s), device=device)               # the null key before all
            if layout.lengths is None:
                return layout.mask(starts, None)
            inside = torch.arange(layout.tokens, device=device) < layout.lengths[:, None]
            mask = layout.mask(starts, (starts < layout.lengths[:, None])[:, None, None])
            return AttentionMask(mask.tensor, padding=~inside)
        capacity = 1 + layout.tokens // s if cache is None else cache.keys.shape[2]
        ends = s * torch.arange(capacity, device=device) - 1
        allowed = causal_mask(layout.positions, ends)                                          # (B, 1, T, M + 1)
        if layout.documents is not None:                 # a key is of the query's document if its first token is
            first = layout.documents[:, : s * (capacity - 1) : s]
            same = (layout.documents[:, :, None] == first[:, None])[:, None]
            allowed = allowed & pad(same, (1, 0), value=True)
        return layout.mask(ends, allowed)

    def cached(self, state: LayerState, length: Tensor) -> LayerState:
        keys, values, tokens = state
        missing = compressed_capacity(tokens.shape[1], self.stride) - keys.shape[2]
        place = length[:, None] // self.stride * self.stride + torch.arange(self.stride - 1, device=length.device)
        index = place.clamp(max=tokens.shape[1] - 1)[..., None].expand(-1, -1, tokens.shape[2])
        return pad(keys, (0, 0, 0, missing)), pad(values, (0, 0, 0, missing)), tokens.gather(1, index)

    def _compress_all(self, tokens: Tensor, mask: AttentionMask, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(B, T, 2Gd) -> (B, G, 1 + M, d) each: the null key, and those of a text from its beginning."""
        s, count = self.stride, tokens.shape[1]
        if self.causal:
            tokens, places = tokens[:, : count // s * s], slice(s - 1, None, s)
        else:
            if mask.padding is not None:
                tokens = tokens.masked_fill(mask.padding[..., None], 0)
            tokens, places = pad(tokens, (0, 0, 0, -count % s)), slice(0, None, s)
        at = None if rope is None else (rope[0][:, places], rope[1][:, places])
        keys, values = self._compress(tokens, at)
        return pad(keys, (0, 0, 1, 0)), pad(values, (0, 0, 1, 0))

    def _compress(self, tokens: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor]:
        """(B, M·s, 2Gd) -> (B, G, M, d) keys and values; `rope` at the position of each key."""
        rows, count, size = tokens.shape
        groups = tokens.reshape(rows, count // self.stride, self.stride, size)                 # (B, M, s, 2Gd)
        keys, values = (part.flatten(2) for part in groups.chunk(2, -1))
        key = self._place(1, self.compress_keys(keys), rope)
        return key.transpose(1, 2), self._split_heads(self.compress_values(values)).transpose(1, 2)

    def _mix(self, query: Tensor, keys: Tensor, values: Tensor, mask: AttentionMask, *, cached: bool) -> Tensor:
        """(B, T, H, d), (B, G, 1 + M, d) -> (B, T, H, d)"""
        if mask.causal:
            return self._by_residue(query, keys, values, mask)
        pattern, tokens = self.pattern, (keys.shape[2] - 1) * self.stride if cached else query.shape[1]
        if self.pattern.watched:
            pattern = Tap()
            pattern.callback = lambda weights: _ignore(self.pattern(spread(weights, self.stride, tokens)))
        return self._attend(query.transpose(1, 2), keys, values, mask, pattern)

    def _by_residue(self, query: Tensor, keys: Tensor, values: Tensor, mask: AttentionMask) -> Tensor:
        """Query t sees the first 1 + (t + 1) // s keys: query si + r - 1 is the i-th of residue r, which is a row."""
        rows, tokens, heads, size = query.shape
        s, count = self.stride, keys.shape[2]
        grid = pad(query, (0, 0, 0, 0, 1, count * s - tokens - 1)).view(rows, count, s, heads, size)
        queries = grid.permute(0, 2, 3, 1, 4).flatten(0, 1)                                    # (B·s, H, 1 + M, d)
        keys, values = (part.repeat_interleave(s, 0) for part in (keys, values))
        mixed = self._attend(queries, keys, values, mask)                                      # (B·s, 1 + M, H, d)
        mixed = mixed.reshape(rows, s, count, heads, size).transpose(1, 2).flatten(1, 2)       # (B, (1 + M)s, H, d)
        return mixed[:, 1 : tokens + 1]


def spread(weights: Tensor, stride: int, tokens: int) -> Tensor:
    """(B, H, T, 1 + M) -> (B, H, T, C): the weight of a key in equal parts on its tokens, without the null key's."""
    starts = stride * torch.arange(weights.shape[-1] - 1, device=weights.device)
    each = (weights[..., 1:] / (tokens - starts).clamp(1, stride)).repeat_interleave(stride, -1)
    return pad(each, (0, tokens - each.shape[-1]))


def _rope_at(rope: Rope | None, place: Tensor) -> Rope | None:
    """The rotation of these new tokens, (B, M) of T."""
    if rope is None:
        return None
    cos, sin = (table.gather(1, place[..., None, None].expand(-1, -1, 1, table.shape[3])) for table in rope)
    return cos, sin


def _ignore(_: Tensor) -> None:
    """A tap's callback returns nothing."""

"""Local and sliding-window attention: a token attends to few tokens before it, in time and memory O(T · W).

    local      blocks of W tokens, each of which attends within itself (Liu et al. 2018); an encoder's, both ways
    sliding    the last W tokens, with the token itself (Beltagy et al. 2020); each layer sees W - 1 tokens further back

Local attention is full attention of T/W short texts: blocks become rows of the batch. A sliding window is computed in
blocks too, each with its own keys and those of the block before; on a GPU in half precision by torch's kernel for
windows. No T x T matrix is made, unless the attention weights are watched. The KV cache is a ring of W tokens.

Shapes: B rows, T tokens, C keys, W tokens of a block or window, N blocks, H query heads, G key/value heads, d numbers
in a head.
"""

import inspect
from dataclasses import replace
from functools import cache as cached_function
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule.layers.attention import Attention, AttentionMask, TokenLayout, causal_mask, document_mask
from chainrule.layers.kv_cache import LayerCache, LayerState, RingCache, ring_positions
from chainrule.layers.positions import Rope

WINDOW_KERNEL = True                               # whether torch's kernel for windows is used, where there is one
HALF = torch.bfloat16, torch.float16


class LocalAttention(Attention):
    """Self-attention within blocks of `size` tokens. Other arguments as for Attention."""

    kind = "local"

    def __init__(self, *sizes: int, size: int, **options: Any):
        super().__init__(*sizes, **options)
        self.size = size

    def forward(
        self, x: Tensor, mask: AttentionMask, rope: Rope | None = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, LayerState]:
        """(B, T, D) -> (B, T, D); and the keys and values of the tokens, or the ring after them if there is a cache."""
        query, key, value = self._heads(x, rope)                                     # (B, T, ·, d)
        if cache is None and self._in_blocks(x.shape[1]):
            return self._out(self._by_blocks(query, key, value, mask)), (key.transpose(1, 2), value.transpose(1, 2))
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        if cache is None:
            return self._out(self._attend(query, key, value, mask)), (key, value)
        assert isinstance(cache, RingCache)
        mixed = self._attend(query, *cache.extend(key, value), mask)
        return self._out(mixed), cache.write(key, value)

    def mask(self, layout: TokenLayout, cache: LayerCache | None = None, *, whole: bool = False) -> AttentionMask:
        if isinstance(cache, RingCache):
            keys = cache.key_positions()
            return layout.mask(keys, self._visible(layout.positions, keys) & (keys >= 0)[:, None])
        if layout.tokens <= self.size:
            return super().mask(layout)
        return self._whole_mask(layout) if whole else self._block_mask(layout)

    def cached(self, state: LayerState, length: Tensor) -> LayerState:
        """(B, G, T, d) -> (B, G, W, d): the ring after (B,) tokens, those after them are padding."""
        index = ring_positions(length[:, None], self.size).clamp(0, state[0].shape[2] - 1)[:, None, :, None]
        keys, values = (part.gather(2, index.expand(-1, part.shape[1], -1, part.shape[3])) for part in state)
        return keys, values

    def _in_blocks(self, tokens: int) -> bool:
        return tokens > self.size and not self.pattern.watched

    def _visible(self, positions: Tensor, keys: Tensor) -> Tensor:
        """(B, T), (C,) or (B, 1, C) -> (B, 1, T, C): whether a token, at or after a key, is in the same block."""
        return causal_mask(positions, keys) & self._same_block(positions, keys)

    def _same_block(self, positions: Tensor, keys: Tensor) -> Tensor:
        return (positions[..., None] // self.size == keys // self.size)[:, None]

    def _whole_mask(self, layout: TokenLayout) -> AttentionMask:
        keys = torch.arange(layout.tokens, device=layout.positions.device)
        allowed = self._visible(layout.positions, keys) if layout.causal else self._same_block(layout.positions, keys)
        if layout.documents is not None:
            allowed = allowed & document_mask(layout.documents, layout.documents)
        if layout.lengths is not None:
            inside = (keys < layout.lengths[:, None])[:, None, None]
            allowed = allowed & (inside | ~inside.mT)                # what padding attends to is never read
        return layout.mask(keys, allowed)

    def _block_mask(self, layout: TokenLayout) -> AttentionMask:
        """The mask of blocks that are rows: that of short texts."""
        return super().mask(self._blocks_as_rows(layout))

    def _blocks_as_rows(self, layout: TokenLayout) -> TokenLayout:
        """Distances are all that a bias depends on, so the positions begin at 0 in every block."""
        size, count = self.size, -(-layout.tokens // self.size)
        positions, lengths = torch.arange(size, device=layout.positions.device), layout.lengths
        if lengths is None and not layout.causal and layout.tokens % size:
            lengths = torch.full((layout.rows,), layout.tokens, device=positions.device)
        if lengths is not None:
            starts = torch.arange(count, device=positions.device) * size
            lengths = (lengths[:, None] - starts).clamp(0, size).flatten()                     # (B·N,)
            lengths = lengths.where(lengths > 0, size)               # a block of padding, which is never read
        documents = layout.documents
        if documents is not None:
            documents = pad(documents, (0, count * size - layout.tokens), value=-1).view(-1, size)
        return replace(
            layout, positions=positions[None], rows=layout.rows * count, lengths=lengths, documents=documents
        )

    def _by_blocks(self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
        """(B, T, ·, d) -> (B, T, H, d): blocks are rows, without a copy where T is a multiple of W."""
        tokens = query.shape[1]
        queries, keys, values = (as_rows(blocks(part, self.size)) for part in (query, key, value))
        mixed = self._attend(queries, keys, values, mask)                            # (B·N, W, H, d)
        return mixed.reshape(len(query), -1, *mixed.shape[2:])[:, :tokens]


class SlidingAttention(LocalAttention):
    """Self-attention to the last `size` tokens; causal only."""

    kind = "sliding"

    def _visible(self, positions: Tensor, keys: Tensor) -> Tensor:
        return causal_mask(positions, keys, self.size)

    def _block_mask(self, layout: TokenLayout) -> AttentionMask:
        """Of each block but the first for its own keys and those of the block before; no tensor for torch's kernel."""
        if layout.plain and self._has_kernel(layout):
            return AttentionMask(causal=True)
        size, documents = self.size, layout.documents
        keys = torch.arange(2 * size, device=layout.positions.device)
        queries, allowed = keys[None, size:], self._visible(keys[None, size:], keys)           # (1, 1, W, 2W)
        first = replace(layout, positions=layout.positions[:, :size])
        if documents is not None:
            rows = blocks(pad(documents, (0, -layout.tokens % size), value=-1), size)          # (B, N, W)
            allowed = allowed & document_mask(rows[:, 1:].flatten(0, 1), with_block_before(rows).flatten(0, 1))
            first = replace(first, documents=documents[:, :size])
        return replace(layout.mask(keys, allowed, queries), first=Attention.mask(self, first))

    def _by_blocks(self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask) -> Tensor:
        if mask.first is None:
            return self._by_kernel(query, key, value)
        tokens, size = query.shape[1], self.size
        queries, keys, values = (part[:, :size].transpose(1, 2) for part in (query, key, value))
        first = self._attend(queries, keys, values, mask.first)                                # (B, W, H, d)
        queries = as_rows(blocks(query, size)[:, 1:])
        keys, values = (as_rows(with_block_before(blocks(part, size))) for part in (key, value))
        rest = self._attend(queries, keys, values, mask)                                       # (B·(N-1), W, H, d)
        return torch.cat([first, rest.reshape(len(query), -1, *rest.shape[2:])], 1)[:, :tokens]

    def _has_kernel(self, layout: TokenLayout) -> bool:
        half = layout.positions.is_cuda and layout.dtype in HALF and not (self.training and self.dropout)
        return WINDOW_KERNEL and half and window_kernel(grouped=self.kv_heads != self.heads)

    def _by_kernel(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        rows, tokens = query.shape[:2]
        ends = torch.arange(0, (rows + 1) * tokens, tokens, dtype=torch.int32, device=query.device)
        options: dict[str, Any] = {"scale": self.scale, "window_size": (self.size - 1, 0)}
        if self.kv_heads != self.heads:
            options["enable_gqa"] = True
        queries, keys, values = (part.flatten(0, 1).contiguous() for part in (query, key, value))    # (B·T, ·, d)
        mixed = cast(Tensor, varlen_attn(queries, keys, values, ends, ends, tokens, tokens, **options))
        return mixed.view(query.shape)


def blocks(part: Tensor, size: int) -> Tensor:
    """(B, T, …) -> (B, N, W, …), with zeros after the end."""
    missing = -part.shape[1] % size
    if missing:
        part = pad(part, (*[0, 0] * (part.dim() - 2), 0, missing))
    return part.view(len(part), -1, size, *part.shape[2:])


def as_rows(part: Tensor) -> Tensor:
    """(B, N, W, ·, d) -> (B·N, ·, W, d): blocks as rows of the batch, for the kernels."""
    return part.flatten(0, 1).transpose(1, 2)


def with_block_before(part: Tensor) -> Tensor:
    """(B, N, W, …) -> (B, N - 1, 2W, …): each block but the first, after the block before it."""
    return torch.cat([part[:, :-1], part[:, 1:]], 2)


@cached_function
def window_kernel(*, grouped: bool) -> bool:
    """Whether torch has attention with windows, and with fewer key/value heads if asked: it came in parts."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    needed = {"window_size", "scale", "enable_gqa"} if grouped else {"window_size", "scale"}
    return needed <= set(inspect.signature(varlen_attn).parameters)

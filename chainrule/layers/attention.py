"""Attention: multi-head self-attention and cross-attention, causal and padding masks.

    attention(Q, K, V) = softmax(Q Kᵀ / √d + M) V        M = 0 where a query may attend to a key, -∞ where not

Torch's fused kernels compute it without storing the attention weights; while the weights are watched, they are computed
as the formula says. Keys and values of earlier tokens come from the KV cache, each at its token's position.

Shapes: B rows, T queries, C keys, S source tokens, D width, H query heads, G key/value heads, d numbers in a head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, autocast, nn, split
from torch.nn.functional import dropout, scaled_dot_product_attention

from chainrule.kernels import float8_layers, ops
from chainrule.layers.kv_cache import KeysValues, LayerCache, LayerState
from chainrule.layers.positions import Rope, apply_rope
from chainrule.model import Tap

# Masks


@dataclass(frozen=True)
class AttentionMask:
    """Which keys a query may attend to. Without a tensor and not causal: all of them."""

    tensor: Tensor | None = None    # (B or 1, H or 1, T, C): True where it may, or a bias that is added to the scores
    causal: bool = False            # without a tensor: the keys up to the query's own position, of the same tokens
    first: "AttentionMask | None" = None    # of the first block, where the other blocks also attend to the one before
    padding: Tensor | None = None   # (B, T) True at padding, for a layer that mixes neighbouring keys

    def as_bias(self, dtype: torch.dtype) -> "AttentionMask":
        """The same as numbers to add, 0 or -∞, which the fused kernels would otherwise make in every layer."""
        first = None if self.first is None else self.first.as_bias(dtype)
        if self.tensor is None or self.tensor.dtype != torch.bool:
            return replace(self, first=first)
        return replace(self, tensor=as_numbers(self.tensor, dtype), first=first)

    def as_tensor(self, queries: int, device: torch.device) -> Tensor | None:
        if self.tensor is not None or not self.causal:
            return self.tensor
        return torch.ones(queries, queries, dtype=torch.bool, device=device).tril()


def as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where it is True, -∞ where not."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)


@dataclass(frozen=True)
class TokenLayout:
    """Where the tokens of a forward pass stand: from this each kind of attention makes its mask."""

    positions: Tensor                    # (B or 1, T)
    rows: int                            # B
    causal: bool
    dtype: torch.dtype = torch.float32   # of queries and keys
    lengths: Tensor | None = None        # (B,) tokens that are not padding, in an encoder
    documents: Tensor | None = None      # (B, T) the document of each token of a packed row; they do not see each other
    bias: nn.Module | None = None        # what the positions add to the scores

    @property
    def tokens(self) -> int:
        return self.positions.shape[1]

    @property
    def plain(self) -> bool:
        """Whether it is a causal text without a bias or documents, for which the kernels need no mask tensor."""
        return self.causal and self.bias is None and self.documents is None

    def mask(self, keys: Tensor, allowed: Tensor | None, positions: Tensor | None = None) -> AttentionMask:
        """Of keys at positions (C,) or (B, 1, C), where `allowed` is True; with the bias of the positions."""
        if self.bias is None:
            return AttentionMask(allowed)
        bias = self.bias(self.positions if positions is None else positions, keys)            # (B, H, T, C)
        return AttentionMask(bias if allowed is None else bias.masked_fill(~allowed, -math.inf))


def causal_mask(positions: Tensor, keys: Tensor, window: int | None = None) -> Tensor:
    """(B, T), (C,) or (B, 1, C) -> (B, 1, T, C): True for a key at the query's position or before it, in the window."""
    distance = (positions[..., None] - keys)[:, None]
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def padding_mask(lengths: Tensor, keys: int) -> Tensor:
    """(B,) -> (B, 1, 1, C): True for a key that is not padding."""
    return (torch.arange(keys, device=lengths.device) < lengths[:, None])[:, None, None]


def document_mask(queries: Tensor, keys: Tensor) -> Tensor:
    """(B, T), (B, C) -> (B, 1, T, C): True for a key of the query's own document."""
    return (queries[:, :, None] == keys[:, None])[:, None]


# Attention layers


class PackedLinear(nn.Linear):
    """Several linear maps of one vector as one matrix product: their weights lie one below the other."""

    def __init__(self, width: int, parts: Sequence[int], bias: bool):
        super().__init__(width, sum(parts), bias)
        self.parts = list(parts)    # outputs of each map


class Attention(nn.Module):
    """Multi-head self-attention: queries, keys and values of the same tokens."""

    kind = "full"                                   # its name in model.attention

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,             # heads of keys and values: each serves heads / kv_heads query heads
        head_size: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,      # probability of dropping an attention weight in training
        norms: tuple[nn.Module, nn.Module] | None = None,    # of queries and of keys (QK norm)
        qkv: bool = True,          # queries, keys and values are linear maps of x; False: they are x itself
        scaled: bool = True,       # scores are divided by √d
    ):
        super().__init__()
        self.heads, self.kv_heads, self.head_size, self.dropout = heads, kv_heads, head_size, dropout
        self.parts = [heads * head_size, kv_heads * head_size, kv_heads * head_size]
        self.project = PackedLinear(width, self.parts, bias) if qkv else None
        self.out = nn.Linear(heads * head_size, width, bias) if qkv else nn.Identity()
        self.scale = None if scaled else 1.0
        self.norms = nn.ModuleList(norms or ())
        self.pattern = Tap()                        # (B, H, T, C): the attention weights

    def forward(
        self, x: Tensor, mask: AttentionMask, rope: Rope | None = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, LayerState]:
        """(B, T, D) -> (B, T, D), and all keys and values that were attended to, (B, G, C, d) each."""
        query, key, value = (part.transpose(1, 2) for part in self._heads(x, rope))
        if cache is not None:
            key, value = cache.write(key, value)
        return self._out(self._attend(query, key, value, mask)), (key, value)

    def mask(self, layout: TokenLayout, cache: LayerCache | None = None, *, whole: bool = False) -> AttentionMask:
        """The mask of these tokens for each other, or for the keys of a cache; no tensor where none is needed.

        `whole`: for all tokens of a row at once, where attention is otherwise computed in blocks.
        """
        if layout.plain and cache is None:
            return AttentionMask(causal=True)
        capacity = layout.tokens if cache is None else cache.keys.shape[2]
        keys, allowed = torch.arange(capacity, device=layout.positions.device), None
        if layout.causal:
            allowed = causal_mask(layout.positions, keys)                                     # (B, 1, T, C)
        elif layout.lengths is not None:
            allowed = padding_mask(layout.lengths, layout.tokens)                             # (B, 1, 1, C)
        if layout.documents is not None:
            same = document_mask(layout.documents, layout.documents)
            allowed = same if allowed is None else allowed & same
        return layout.mask(keys, allowed)

    def cached(self, state: LayerState, length: Tensor) -> LayerState:
        """What the KV cache keeps of a text that was read from its beginning: `state` from `forward`, `length` (B,)."""
        return state

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, pattern: Tap | None = None
    ) -> Tensor:
        """(B, H, T, d), (B, G, C, d), (B, G, C, d) -> (B, T, H, d)"""
        drop = self.dropout if self.training else 0.0
        return attend(query, key, value, mask, drop, pattern or self.pattern, self.scale).transpose(1, 2)

    def _out(self, mixed: Tensor) -> Tensor:
        """(B, T, H, d) -> (B, T, D)"""
        return float8_layers.linear(mixed.flatten(2), self.out)

    def _project(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, (H + 2G)d)"""
        return torch.cat([x, x, x], -1) if self.project is None else float8_layers.linear(x, self.project)

    def _heads(self, x: Tensor, rope: Rope | None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, D) -> queries (B, T, H, d), keys and values (B, T, G, d), with QK norm and RoPE."""
        packed = self._project(x)
        if self._can_fuse(packed, rope):
            return fused_qk_norm_rope(packed, self.heads, self.kv_heads, self.norms, rope)
        query, key, value = split(packed, self.parts, -1)
        return self._place(0, query, rope), self._place(1, key, rope), self._split_heads(value)

    def _place(self, which: int, part: Tensor, rope: Rope | None) -> Tensor:
        """(B, T, H·d) -> (B, T, H, d): queries (0) or keys (1) with QK norm and RoPE."""
        x = self._split_heads(part)
        if self.norms:
            x = self.norms[which](x).type_as(part)
        return x if rope is None else apply_rope(x, rope)

    def _split_heads(self, part: Tensor) -> Tensor:
        return part.view(*part.shape[:2], part.shape[2] // self.head_size, self.head_size)

    def _can_fuse(self, packed: Tensor, rope: Rope | None) -> bool:
        """The kernel is for norms without parameters and for heads whose size is a power of 2."""
        power = self.head_size > 1 and self.head_size & (self.head_size - 1) == 0
        plain = next(self.norms.parameters(), None) is None
        return ops.fuses(packed, _norm_kind(self.norms)) and power and bool(self.norms or rope) and plain


def fused_qk_norm_rope(
    packed: Tensor, heads: int, kv_heads: int, norms: nn.ModuleList, rope: Rope | None
) -> tuple[Tensor, Tensor, Tensor]:
    """`Attention._heads` as one kernel (kernels/qk_norm_rope.py)."""
    norm: Any = norms[0] if norms else None
    tables = (None, None) if rope is None else rope
    return ops.qk_norm_rope(packed, *tables, heads, kv_heads, 0.0 if norm is None else norm.eps, _norm_kind(norms))


def _norm_kind(norms: nn.ModuleList) -> str | None:
    """Of the queries; that of the keys is the same."""
    return None if not norms else "layer" if isinstance(norms[0], nn.LayerNorm) else "rms"


@dataclass(frozen=True)
class CrossMemory:
    """The encoded source as one layer of the decoder attends to it."""

    keys: Tensor        # (B, G, S, d)
    values: Tensor      # (B, G, S, d)
    mask: AttentionMask          # which of them are not padding


class CrossAttention(nn.Module):
    """Multi-head cross-attention: queries of a text, keys and values of its source. Arguments as for Attention."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        norms: tuple[nn.Module, nn.Module] | None = None,
        scaled: bool = True,
    ):
        super().__init__()
        self.heads, self.head_size, self.dropout, self.scale = heads, head_size, dropout, None if scaled else 1.0
        self.queries = nn.Linear(width, heads * head_size, bias)
        self.memory = PackedLinear(width, [kv_heads * head_size] * 2, bias)    # keys, values
        self.out = nn.Linear(heads * head_size, width, bias)
        self.norms = nn.ModuleList(norms or ())
        self.pattern = Tap()                        # (B, H, T, S): the attention weights

    def keys_values(self, source: Tensor) -> KeysValues:
        """(B, S, D) -> (B, G, S, d) each; they are computed once for all tokens of the text."""
        packed = float8_layers.linear(source, self.memory)
        key, value = (split_heads(part, self.head_size) for part in packed.chunk(2, -1))
        return self.norms[1](key).type_as(value) if self.norms else key, value

    def forward(self, x: Tensor, source: CrossMemory) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        query = split_heads(float8_layers.linear(x, self.queries), self.head_size)
        if self.norms:
            query = self.norms[0](query).type_as(source.values)
        drop = self.dropout if self.training else 0.0
        mixed = attend(query, source.keys, source.values, source.mask, drop, self.pattern, self.scale)
        return float8_layers.linear(mixed.transpose(1, 2).flatten(2), self.out)


def split_heads(x: Tensor, size: int) -> Tensor:
    """(B, T, H·d) -> (B, H, T, d)"""
    return x.view(*x.shape[:2], -1, size).transpose(1, 2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, drop: float, pattern: Tap,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Dot-product attention: (B, H, T, d), (B, G, C, d), (B, G, C, d) -> (B, H, T, d). Without a scale it is 1/√d."""
    if pattern.watched:
        return attend_by_formula(query, key, value, mask, drop, pattern, scale)
    if query.dtype == torch.bfloat16 and query.device.type == "cpu" and torch.is_grad_enabled():
        with autocast("cpu", enabled=False):    # torch's backward pass in bfloat16 is many times slower on a CPU
            return attend(query.float(), key.float(), value.float(), mask, drop, pattern, scale).to(query.dtype)
    tensor = mask.tensor if mask.tensor is None or mask.tensor.dtype == torch.bool else mask.tensor.to(query.dtype)
    grouped = key.shape[1] != query.shape[1]
    return scaled_dot_product_attention(
        query, key, value, tensor, drop, mask.causal and tensor is None, scale=scale, enable_gqa=grouped
    )


def attend_by_formula(
    query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, drop: float, pattern: Tap,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """The same as the formula above says; `pattern` sees the attention weights (B, H, T, C)."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = (query @ key.mT).float()
    scores = scores / math.sqrt(query.shape[-1]) if scale is None else scores * scale
    tensor = mask.as_tensor(query.shape[2], query.device)
    if tensor is not None:
        scores = scores.masked_fill(~tensor, -math.inf) if tensor.dtype == torch.bool else scores + tensor
    return dropout(pattern(scores.softmax(-1)), drop).to(value.dtype) @ value

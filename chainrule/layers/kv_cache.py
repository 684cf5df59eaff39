"""The KV cache: keys and values of the tokens that were read, so that a step computes only those of new tokens.

    {"keys": (B, L, G, C, d), "values": (B, L, G, C, d), "length": (B,)}

The tokens of each row lie at positions 0 to its length; the capacity after them is unused. Capacity doubles when it
runs out, so a long text is copied a few times and not once for each token. Where there is enough, a step writes in
place and no shape changes, which is what a CUDA graph needs. Layers that cannot see all of a text keep only what they
can still see, under names of their own (FIELDS): local and sliding layers the last W tokens, in a ring; compressed ones
one key and value for each s tokens, and the up to s - 1 tokens for which the next is still to be computed.

Shapes: B rows, L layers, G key/value heads, C capacity in tokens, W tokens of a ring, s stride, T new tokens, M groups
of s tokens, d numbers in a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.device import working_dtype
from chainrule.errors import UserError
from chainrule.layers.transformer_settings import TransformerSettings

Cache = dict[str, Tensor]
KeysValues = tuple[Tensor, Tensor]    # of a layer, (B, G, C, d) each
LayerState = tuple[Tensor, ...]       # what one layer keeps: its FIELDS
MIN_CAPACITY = 64                     # tokens, once anything has been read

FIELDS = {    # by the kind of attention
    "full": ("keys", "values"),
    "local": ("local_keys", "local_values"),
    "sliding": ("sliding_keys", "sliding_values"),
    "compressed": ("compressed_keys", "compressed_values", "pending"),
}
RINGS = "local", "sliding"


# The cache of one layer


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer, and the positions of the new tokens."""

    keys: Tensor                # (B, G, C, d)
    values: Tensor              # (B, G, C, d)
    positions: Tensor           # (B, T)

    def write(self, keys: Tensor, values: Tensor) -> KeysValues:
        """(B, G, T, d) -> (B, G, C, d): all keys and values, the new ones at their positions; in place if it can be."""
        index = self.positions[:, None, :, None].expand_as(keys)
        return _scatter(self.keys, index, keys), _scatter(self.values, index, values)


@dataclass(frozen=True)
class RingCache(LayerCache):
    """The cache of a layer that sees the last W tokens at most: position p is in slot p mod W."""

    def key_positions(self) -> Tensor:
        """(B, 1, W + T): the positions of what the ring holds, negative in an empty slot, and of the new tokens."""
        held = ring_positions(self.positions[:, :1], self.keys.shape[2])
        return torch.cat([held, self.positions], 1)[:, None]

    def extend(self, keys: Tensor, values: Tensor) -> KeysValues:
        """(B, G, T, d) -> (B, G, W + T, d): what the ring holds, and the new ones."""
        return torch.cat([self.keys, keys.to(self.keys)], 2), torch.cat([self.values, values.to(self.values)], 2)

    def write(self, keys: Tensor, values: Tensor) -> KeysValues:
        """(B, G, T, d) -> (B, G, W, d): the ring after the new ones, of which it holds the last W."""
        size = self.keys.shape[2]
        last = slice(max(0, keys.shape[2] - size), None)
        keys, values = keys[:, :, last], values[:, :, last]
        index = (self.positions[:, last] % size)[:, None, :, None].expand_as(keys)
        return _scatter(self.keys, index, keys), _scatter(self.values, index, values)


@dataclass(frozen=True)
class CompressedCache(LayerCache):
    """The cache of a layer with one key for each s tokens: slot 0 is the null key, slot j has tokens s(j-1) to sj - 1.

    The last slots may hold a key of too few tokens. It is masked, and overwritten when its last token comes.
    """

    pending: Tensor             # (B, s - 1, 2Gd): keys and values of single tokens, those after the last whole group

    @property
    def stride(self) -> int:
        return self.pending.shape[1] + 1

    def groups(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, 2Gd) new tokens -> (B, M·s, 2Gd) the pending ones and these; (B, M) the token that ends each group."""
        count = (self.stride - 1 + tokens.shape[1]) // self.stride
        place = torch.arange(count * self.stride, device=tokens.device).expand(len(tokens), -1)
        last = place[:, self.stride - 1 :: self.stride] - self._waiting()
        return self._gather(tokens, place), last.clamp(max=tokens.shape[1] - 1)

    def store(self, keys: Tensor, values: Tensor, tokens: Tensor) -> LayerState:
        """(B, G, M, d) of the groups, and (B, T, 2Gd) the new tokens -> the cache after them."""
        first, count = self.positions[:, :1], tokens.shape[1]
        slots = first // self.stride + 1 + torch.arange(keys.shape[2], device=keys.device)                # (B, M)
        index = slots[:, None, :, None].expand_as(keys)
        whole = (first + count) // self.stride - first // self.stride                                     # (B, 1)
        after = self._gather(tokens, whole * self.stride + torch.arange(self.stride - 1, device=keys.device))
        pending = after.to(self.pending) if torch.is_grad_enabled() else self.pending.copy_(after)
        return _scatter(self.keys, index, keys), _scatter(self.values, index, values), pending

    def _waiting(self) -> Tensor:
        """(B, 1): the tokens that are pending."""
        return self.positions[:, :1] % self.stride

    def _gather(self, tokens: Tensor, place: Tensor) -> Tensor:
        """(B, N, 2Gd): the tokens at these places, from the first pending one on; after the last, the last."""
        every, waiting = torch.cat([self.pending.to(tokens), tokens], 1), self._waiting()
        index = torch.where(place < waiting, place, place + self.stride - 1 - waiting).clamp(max=every.shape[1] - 1)
        return every.gather(1, index[..., None].expand(-1, -1, every.shape[2]))


def ring_positions(length: Tensor, size: int) -> Tensor:
    """(B, 1) tokens so far -> (B, W): the position that each slot of a ring holds; negative: none yet."""
    slots = torch.arange(size, device=length.device)
    return length - 1 - (length - 1 - slots) % size


def _scatter(into: Tensor, index: Tensor, new: Tensor) -> Tensor:
    """Gradients may need the old values, so it is in place only without them."""
    scatter = Tensor.scatter if torch.is_grad_enabled() else Tensor.scatter_
    return scatter(into, 2, index, new.to(into))


# The cache of all layers


def empty(settings: TransformerSettings, rows: int, like: Tensor) -> Cache:
    """A cache of which no token has been read, in the device and the working dtype of `like`."""
    kinds, heads, size = settings.attention_kinds, settings.kv_heads, settings.head_size
    shapes: dict[str, tuple[int, ...]] = {"keys": (kinds.count("full"), heads, 0, size)}
    shapes |= {f"{kind}_keys": (kinds.count(kind), heads, settings.span(kind), size) for kind in RINGS if kind in kinds}
    shapes |= {name.replace("keys", "values"): shape for name, shape in shapes.items()}
    if layers := kinds.count("compressed"):
        shapes |= dict.fromkeys(("compressed_keys", "compressed_values"), (layers, heads, 0, size))
        shapes["pending"] = layers, (settings.stride or 0) - 1, 2 * heads * size
    cache = {name: like.new_zeros((rows, *shape), dtype=working_dtype(like)) for name, shape in shapes.items()}
    return cache | {"length": torch.zeros(rows, dtype=torch.long, device=like.device)}


def capacity(cache: Cache) -> int:
    return cache["keys"].shape[3]


def ensure(cache: Cache, tokens: int, context: int) -> Cache:
    """The same cache with capacity for `tokens` more in every row."""
    if _capturing():                                # the host cannot ask for lengths; `reserve` was called before
        return cache
    needed = int(cache["length"].max()) + tokens
    return cache if needed <= capacity(cache) else grow(cache, needed, context)


def grow(cache: Cache, needed: int, context: int) -> Cache:
    """The same cache with capacity for `needed` tokens, rounded up to a power of 2, and at most the context."""
    check_length(needed, context)
    return _resize(cache, min(context, max(MIN_CAPACITY, 1 << (needed - 1).bit_length())))


def reserve(cache: Cache, tokens: int, context: int) -> Cache:
    """The same cache with capacity for `tokens` more in every row, and for few others."""
    needed = int(cache["length"].max()) + tokens
    if needed <= capacity(cache):
        return cache
    return _resize(cache, min(context, -(-needed // MIN_CAPACITY) * MIN_CAPACITY))


def check_length(tokens: int, context: int) -> None:
    if tokens > context:
        raise UserError(f"a text of {tokens} tokens is longer than model.context={context}. Cut it into windows.")


def layer_caches(cache: Cache, positions: Tensor, kinds: Sequence[str]) -> list[LayerCache]:
    """The cache layer by layer, of these kinds; `positions` (B, T) of the new tokens."""
    parts = {kind: zip(*(cache[name].unbind(1) for name in FIELDS[kind]), strict=True) for kind in set(kinds)}
    return [_layer_cache(kind, next(parts[kind]), positions) for kind in kinds]


def _layer_cache(kind: str, state: LayerState, positions: Tensor) -> LayerCache:
    keys, values, *pending = state
    if kind == "compressed":
        return CompressedCache(keys, values, positions, *pending)
    return (RingCache if kind in RINGS else LayerCache)(keys, values, positions)


def from_layers(layers: Sequence[LayerState], length: Tensor, kinds: Sequence[str]) -> Cache:
    """The cache that holds what all layers keep."""
    cache = {"length": length}
    for kind in kinds:
        if FIELDS[kind][0] not in cache:
            states = [state for one, state in zip(kinds, layers) if one == kind]
            cache |= dict(zip(FIELDS[kind], (torch.stack(part, 1) for part in zip(*states, strict=True))))
    return cache


def _resize(cache: Cache, tokens: int) -> Cache:
    """Rings and pending tokens need no more capacity than they have."""
    sizes = dict.fromkeys(FIELDS["full"], tokens)
    if "pending" in cache:
        sizes |= dict.fromkeys(FIELDS["compressed"][:2], compressed_capacity(tokens, cache["pending"].shape[2] + 1))
    return cache | {name: _pad(cache[name], size) for name, size in sizes.items()}


def compressed_capacity(tokens: int, stride: int) -> int:
    """Slots for the null key, all groups of so many tokens, and a group that is not whole."""
    return tokens // stride + 2


def _pad(tensor: Tensor, tokens: int) -> Tensor:
    padded = tensor.new_zeros((*tensor.shape[:3], tokens, tensor.shape[4]))    # zeros: what is masked must be finite
    padded[:, :, :, : tensor.shape[3]] = tensor
    return padded


def _capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

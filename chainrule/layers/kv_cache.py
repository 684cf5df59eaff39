"""The KV cache: keys and values of the tokens that were read, so that a step computes only those of new tokens.

    {"keys": (B, L, G, C, d), "values": (B, L, G, C, d), "length": (B,)}

The tokens of each row lie at positions 0 to its length; the capacity after them is unused. Capacity doubles when it
runs out, so a long text is copied a few times and not once for each token. Where there is enough, a step writes in
place and no shape changes, which is what a CUDA graph needs.

Shapes: B rows, L layers, G key/value heads, C capacity in tokens, T new tokens, d numbers in a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.device import working_dtype
from chainrule.errors import UserError

Cache = dict[str, Tensor]
KeysValues = tuple[Tensor, Tensor]    # of a layer, (B, G, C, d) each
MIN_CAPACITY = 64                     # tokens, once anything has been read


@dataclass(frozen=True)
class LayerCache:
    """The cache of one layer, and the positions of the new tokens."""

    keys: Tensor                # (B, G, C, d)
    values: Tensor              # (B, G, C, d)
    positions: Tensor           # (B, T)

    def write(self, keys: Tensor, values: Tensor) -> KeysValues:
        """(B, G, T, d) -> (B, G, C, d): all keys and values, the new ones at their positions; in place if it can be."""
        index = self.positions[:, None, :, None].expand_as(keys)
        scatter = Tensor.scatter if torch.is_grad_enabled() else Tensor.scatter_    # gradients may need the old values
        return scatter(self.keys, 2, index, keys.to(self.keys)), scatter(self.values, 2, index, values.to(self.values))


def empty(rows: int, layers: int, kv_heads: int, head_size: int, like: Tensor) -> Cache:
    """A cache of which no token has been read, in the device and the working dtype of `like`."""
    tensor = like.new_zeros((rows, layers, kv_heads, 0, head_size), dtype=working_dtype(like))
    return {"keys": tensor, "values": tensor, "length": torch.zeros(rows, dtype=torch.long, device=like.device)}


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


def layer_caches(cache: Cache, positions: Tensor) -> list[LayerCache]:
    """The cache layer by layer; `positions` (B, T) of the new tokens."""
    pairs = zip(cache["keys"].unbind(1), cache["values"].unbind(1), strict=True)
    return [LayerCache(keys, values, positions) for keys, values in pairs]


def from_layers(layers: Sequence[KeysValues], length: Tensor) -> Cache:
    """The cache that holds the keys and values of all layers."""
    keys, values = (torch.stack(part, 1) for part in zip(*layers, strict=True))
    return {"keys": keys, "values": values, "length": length}


def _resize(cache: Cache, tokens: int) -> Cache:
    return {**cache, "keys": _pad(cache["keys"], tokens), "values": _pad(cache["values"], tokens)}


def _pad(tensor: Tensor, tokens: int) -> Tensor:
    padded = tensor.new_zeros((*tensor.shape[:3], tokens, tensor.shape[4]))    # zeros: what is masked must be finite
    padded[:, :, :, : tensor.shape[3]] = tensor
    return padded


def _capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

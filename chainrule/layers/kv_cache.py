"""The keys and values of what has been read, so that a step reads only what is new.

    {"keys": (B, L, G, C, d), "values": (B, L, G, C, d), "length": (B,)}

Each row's own tokens lie at places 0 to its length; the room behind them is unread. Room doubles when it runs out, so
that a long text is copied a few times and not once a token; where there is room enough, a step writes into the tensors
it was given and changes no shape, which is what a CUDA graph needs.

Shapes: B rows, L layers, G heads of keys, C room in tokens, T new tokens, d numbers in a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.device import working_dtype
from chainrule.errors import UserError

Cache = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]    # keys and values of a layer, (B, G, C, d) each
LEAST = 64                      # tokens there is room for once anything has been read


@dataclass(frozen=True)
class LayerCache:
    """What one layer has read, and where what comes now belongs."""

    keys: Tensor                # (B, G, C, d)
    values: Tensor              # (B, G, C, d)
    places: Tensor              # (B, T)

    def write(self, keys: Tensor, values: Tensor) -> Pair:
        """(B, G, T, d) in: all keys and values, these in their places. The state is spent, so it is written over."""
        place = self.places[:, None, :, None].expand_as(keys)
        scatter = Tensor.scatter if torch.is_grad_enabled() else Tensor.scatter_    # gradients may need what was there
        return scatter(self.keys, 2, place, keys.to(self.keys)), scatter(self.values, 2, place, values.to(self.values))


def empty(rows: int, layers: int, heads: int, size: int, like: Tensor) -> Cache:
    nothing = like.new_zeros((rows, layers, heads, 0, size), dtype=working_dtype(like))
    return {"keys": nothing, "values": nothing, "length": torch.zeros(rows, dtype=torch.long, device=like.device)}


def room(cache: Cache) -> int:
    return cache["keys"].shape[3]


def with_room(cache: Cache, tokens: int, context: int) -> Cache:
    """The same cache with room for `tokens` more in every row."""
    if _recorded():                                 # whoever records steps has made room for them
        return cache
    needed = int(cache["length"].max()) + tokens
    return cache if needed <= room(cache) else widened(cache, needed, context)


def widened(cache: Cache, needed: int, context: int) -> Cache:
    """The same cache with room for `needed` tokens in all, and as many again where the context allows it."""
    refuse_more(needed, context)
    wider = min(context, max(LEAST, 1 << (needed - 1).bit_length()))
    return _with(cache, wider)


def _with(cache: Cache, wider: int) -> Cache:
    return {**cache, "keys": _pad(cache["keys"], wider), "values": _pad(cache["values"], wider)}


def reserve(cache: Cache, tokens: int, context: int) -> Cache:
    """The same cache with room for `tokens` more in every row, and for few besides."""
    needed = int(cache["length"].max()) + tokens
    return cache if needed <= room(cache) else _with(cache, min(context, -(-needed // LEAST) * LEAST))


def refuse_more(tokens: int, context: int) -> None:
    if tokens > context:
        raise UserError(f"a text of {tokens} tokens is longer than model.context={context}. Cut it into windows.")


def layers(cache: Cache, places: Tensor) -> list[LayerCache]:
    pairs = zip(cache["keys"].unbind(1), cache["values"].unbind(1), strict=True)
    return [LayerCache(keys, values, places) for keys, values in pairs]


def stacked(pairs: Sequence[Pair], length: Tensor) -> Cache:
    keys, values = (torch.stack(part, 1) for part in zip(*pairs, strict=True))
    return {"keys": keys, "values": values, "length": length}


def _pad(tensor: Tensor, wider: int) -> Tensor:
    padded = tensor.new_zeros((*tensor.shape[:3], wider, tensor.shape[4]))    # zeros: what is masked must be finite
    padded[:, :, :, : tensor.shape[3]] = tensor
    return padded


def _recorded() -> bool:
    """Is a CUDA graph being recorded? Then the host cannot ask the device anything."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

"""Look-up by a vectorised hash table: the indices of many keys at once, by a few hashes, then binary search.

Keys are sorted. The table has several slots for each key; a slot holds one key that hashes there. A key that loses
its first slot takes that of the next hash if it is free. An empty slot proves that a key is absent. There is no loop
over keys, so that building and searching are a few vectorised steps on any device.
"""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

HASHES = (-7046029254386353131, -4417276706812531889, 1609587929392839161)   # odd multipliers, 2^64 / φ first; the top
                                                                             # bits of the product are the slot
FEW = 256         # for so few keys binary search alone is faster
LARGE = 1 << 22   # number of keys from which memory matters more than collisions


class Lookup:
    def __init__(self, keys: Tensor):
        """`keys` (N,) are sorted and distinct; `find` returns the index of a key among them."""
        self.keys = keys
        slots = 4 if len(keys) < LARGE else 2                      # for each key, or up to twice as many
        self.bits = max(slots * len(keys), 1).bit_length()

    @cached_property
    def slots(self) -> Tensor:
        """(2^bits,) the index of the key in each slot, or -1. Made when many keys are first looked up."""
        slots = torch.full((1 << self.bits,), -1, dtype=torch.int32, device=self.keys.device)
        place = torch.arange(len(self.keys), dtype=torch.int32, device=self.keys.device)
        slot = self._slot(self.keys, HASHES[0])
        slots.index_copy_(0, slot, place)                        # of several keys with the same slot one gets it
        for multiplier in HASHES[1:]:
            lost = positions(slots.index_select(0, slot) != place)
            place = place.index_select(0, lost)
            slot = self._slot(self.keys.index_select(0, place), multiplier)
            free = positions(slots.index_select(0, slot) < 0)
            slots.index_copy_(0, slot.index_select(0, free), place.index_select(0, free))
        return slots

    def _slot(self, keys: Tensor, multiplier: int) -> Tensor:
        return (keys * multiplier >> (64 - self.bits)) & ((1 << self.bits) - 1)

    def find(self, keys: Tensor) -> Tensor:
        """The index of each key, or -1."""
        if not len(self.keys):
            return torch.full(keys.shape, -1, dtype=torch.int32, device=keys.device)
        if len(keys) <= FEW:
            return self._search(keys)
        return self._probe(keys, *HASHES)

    def _probe(self, keys: Tensor, multiplier: int, *others: int) -> Tensor:
        """By one hash; keys whose slot holds another key by the other hashes, at last by binary search."""
        guess = self.slots.index_select(0, self._slot(keys, multiplier))
        right = self.keys.index_select(0, guess.clamp(min=0)) == keys
        result = _or_absent(guess, right)
        unsure = positions((guess >= 0) & ~right)
        rest = keys.index_select(0, unsure)
        return result.index_copy_(0, unsure, self._probe(rest, *others) if others else self._search(rest))

    def _search(self, keys: Tensor) -> Tensor:
        place = torch.searchsorted(self.keys, keys, out_int32=True).clamp_(max=len(self.keys) - 1)
        return _or_absent(place, self.keys.index_select(0, place) == keys)


def _or_absent(places: Tensor, right: Tensor) -> Tensor:
    """The places that are right, -1 for the others. `torch.where` has a branch for each element, which is slow."""
    return (places + 1) * right - 1


def positions(mask: Tensor) -> Tensor:
    """(N,) where the mask is true, ascending. On a CPU by numpy, whose search has no branch for each element."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.nonzero()[:, 0]

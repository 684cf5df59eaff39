"""Finding grams by hash, many at once: open addressing where every probe is one vectorised look.

A table of at least twice as many slots as grams holds the place of each gram; a key that finds its slot taken by
another goes on by a stride of its own. Works on any device, and no loop is longer than the unluckiest key's probes.
"""

import torch
from torch import Tensor

GOLDEN = -7046029254386353131   # 2^64 / φ as a signed number: Knuth's multiplicative hash


class Lookup:
    def __init__(self, keys: Tensor):
        """`keys` (N,) are distinct; `find` answers with a key's place among them."""
        self.keys = keys
        self.bits = max(2 * len(keys), 8).bit_length()
        self.slots = torch.full((1 << self.bits,), -1, dtype=torch.int32, device=keys.device)
        waiting = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
        slot, stride = self._hash(keys)
        while len(waiting):
            taken = self.slots[slot]
            self.slots[slot] = torch.where(taken < 0, waiting, taken)   # of several that want one slot, one gets it
            lost = (self.slots[slot] != waiting).nonzero()[:, 0]
            waiting, stride = waiting[lost], stride[lost]
            slot = (slot[lost] + stride) & self._mask

    @property
    def _mask(self) -> int:
        return (1 << self.bits) - 1

    def _hash(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        mixed = keys * GOLDEN
        return (mixed >> (64 - self.bits)) & self._mask, (mixed >> 16) & self._mask | 1

    def find(self, keys: Tensor) -> Tensor:
        """The place of each key, or -1."""
        slot, stride = self._hash(keys)
        place = self.slots.index_select(0, slot)
        wrong = self._wrong(place, keys)
        open_keys, slot, stride = keys[wrong], slot[wrong], stride[wrong]
        while len(wrong):
            slot = (slot + stride) & self._mask
            here = self.slots.index_select(0, slot)
            place[wrong] = here
            still = self._wrong(here, open_keys)
            wrong, open_keys, slot, stride = wrong[still], open_keys[still], slot[still], stride[still]
        return place

    def _wrong(self, place: Tensor, keys: Tensor) -> Tensor:
        """Which keys met another key's slot."""
        if not len(self.keys):
            return place.new_empty(0, dtype=torch.int64)
        return ((place >= 0) & (self.keys.index_select(0, place.clamp(min=0)) != keys)).nonzero()[:, 0]

"""Position encodings. Attention alone does not see the order of the tokens, so the positions are added to it.

sinusoidal  sin and cos of the position at D/2 wavelengths, added to the embedding (Vaswani et al. 2017); no limit
learned     one vector for each position, added to the embedding (blocks.py: InputEmbedding); ends with the context
relative    one learned number for each head and distance, added to the scores (Raffel et al. 2020); large ones share it
rotary      RoPE: queries and keys are rotated by their position (Su et al. 2021; attention.py: apply_rope)

Shapes: B rows (or 1, where all rows have the same positions), T queries, C keys, H heads, D width.
"""

import math

import torch
from torch import Tensor, nn

from chainrule.layers.attention import angles


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """(…) -> (…, D): sin at even numbers, cos at odd ones."""
    angle = angles(positions, width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]


class RelativeBias(nn.Module):
    """A learned bias for each head and distance. Half of the buckets hold one distance each, the others a range."""

    def __init__(self, heads: int, *, bidirectional: bool = False, buckets: int = 32, furthest: int = 128):
        super().__init__()
        self.bidirectional, self.buckets, self.furthest = bidirectional, buckets, furthest
        self.weight = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, T), (C,) -> (B, H, T, C)"""
        return self.weight[self.bucket(queries[..., None] - keys)].permute(0, 3, 1, 2)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of a distance: how far the key lies before the query and, if bidirectional, on which side."""
        if not self.bidirectional:
            return self._bucket(distance.clamp(min=0), self.buckets)
        half = self.buckets // 2
        return self._bucket(distance.abs(), half) + half * (distance < 0)

    def _bucket(self, distance: Tensor, buckets: int) -> Tensor:
        exact = buckets // 2
        beyond = (distance.clamp(min=1) / exact).log() / math.log(self.furthest / exact) * (buckets - exact)
        return torch.where(distance < exact, distance, (exact + beyond.clamp(min=0)).long().clamp(max=buckets - 1))

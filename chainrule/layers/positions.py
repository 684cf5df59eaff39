"""Where a token stands. Attention alone does not see order, so it must be told.

sinusoidal  sin and cos of the place at D/2 wavelengths, added to the embedding (Vaswani et al. 2017); has no end
learned     a vector a place, added to the embedding; ends with the context
relative    a learned number a head and distance, added to the scores; far distances share one (Raffel et al. 2020)
rotary      queries and keys turned by angles that grow with the place (Su et al. 2021); only distances are felt

Shapes: B rows (or 1, where all rows stand alike), T queries, C keys, H heads, D width, d numbers in a head.
"""

import math

import torch
from torch import Tensor, nn

WAVELENGTH = 10_000.0    # the longest wave is 2π times this many tokens


def waves(places: Tensor, width: int, longest: float = WAVELENGTH) -> Tensor:
    """(…) -> (…, D/2): the place as an angle, t / longest^(2i/D), once for each two of D numbers."""
    pace = torch.arange(0, width, 2, dtype=torch.float32, device=places.device) / width
    return places[..., None] * longest**-pace


def sinusoids(places: Tensor, width: int) -> Tensor:
    """(…) -> (…, D): sin at even numbers, cos at odd ones."""
    angle = waves(places, width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]


Rope = tuple[Tensor, Tensor]    # (B, T, 1, d) each: cos twice, and sin with its two signs


def rope_tables(places: Tensor, size: int, longest: float, dtype: torch.dtype = torch.float32) -> Rope:
    """(B, T) -> the rotation of each place."""
    angle = waves(places, size, longest)[:, :, None]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def apply_rope(x: Tensor, by: Rope) -> Tensor:
    """(B, T, H, d): number i of the first half and number i of the second are a point in a plane, which is turned.

        (a, b) → (a cos - b sin, b cos + a sin)
    """
    cos, sin = by
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class RelativeBias(nn.Module):
    """A number for each head and distance. Half of the buckets are one distance each, the rest widen."""

    def __init__(self, heads: int, *, both_ways: bool = False, buckets: int = 32, furthest: int = 128):
        super().__init__()
        self.both_ways, self.buckets, self.furthest = both_ways, buckets, furthest
        self.weight = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, T), (C,) -> (B, H, T, C)"""
        return self.weight[self.bucket(queries[..., None] - keys)].permute(0, 3, 1, 2)

    def bucket(self, distance: Tensor) -> Tensor:
        """Which number a distance has: how far the key lies behind, and where both ways count, which way."""
        if not self.both_ways:
            return self._bucket(distance.clamp(min=0), self.buckets)
        half = self.buckets // 2
        return self._bucket(distance.abs(), half) + half * (distance < 0)

    def _bucket(self, distance: Tensor, buckets: int) -> Tensor:
        exact = buckets // 2
        beyond = (distance.clamp(min=1) / exact).log() / math.log(self.furthest / exact) * (buckets - exact)
        return torch.where(distance < exact, distance, (exact + beyond.clamp(min=0)).long().clamp(max=buckets - 1))

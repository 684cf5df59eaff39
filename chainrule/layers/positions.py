"""Position encodings. Attention alone does not see the order of the tokens, so the positions are added to it.

sinusoidal  sin and cos of the position at D/2 wavelengths, added to the embedding (Vaswani et al. 2017); no limit
learned     one vector for each position, added to the embedding (blocks.py: InputEmbedding); ends with the context
relative    one learned number for each head and distance, added to the scores (Raffel et al. 2020); large ones share it
alibi       a penalty that grows with the distance, added to the scores (Press et al. 2022); no limit
rotary      RoPE: queries and keys are rotated by their position, so scores depend on distances only (Su et al. 2021);
            beyond the length of training it is stretched: position interpolation, NTK-aware scaling, YaRN, Llama 3

Shapes: B rows (or 1, where all rows have the same positions), T queries, C keys, H heads, D width, d numbers in a head.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.layers.transformer_settings import ROPE_THETA, RopeScaling


def positions_in_documents(documents: Tensor) -> Tensor:
    """(B, T) the document of each token of packed rows -> (B, T): its position in its document, from 0."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    return index - (index * begins).cummax(1).values


# Added to the embedding


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """(…) -> (…, D): sin at even numbers, cos at odd ones."""
    angle = positions[..., None] * frequencies(width, ROPE_THETA, positions.device)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]


def frequencies(size: int, theta: float, device: torch.device | None = None) -> Tensor:
    """(d/2,): θ^(-2i/d), the angle by which pair i turns from one position to the next."""
    exponent = torch.arange(0, size, 2, dtype=torch.float32, device=device) / size
    return theta**-exponent


# Rotary positions

Rope = tuple[Tensor, Tensor]    # (B or 1, T, 1, d) each: cos twice, and sin with its two signs

UNSCALED = RopeScaling()
FAST, SLOW = 32.0, 1.0    # YaRN: pairs that turn more often than FAST in the trained length stay; below SLOW, stretched
LLAMA3_FAST = 4.0


def rope_tables(
    positions: Tensor, size: int, theta: float, dtype: torch.dtype = torch.float32, scaling: RopeScaling = UNSCALED
) -> Rope:
    """(B, T) -> the rotation at each position."""
    turns, temperature = rope_frequencies(size, theta, scaling, positions.device)
    angle = (positions[..., None] * turns)[:, :, None]
    cos, sin = angle.cos() * temperature, angle.sin() * temperature
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def rope_frequencies(
    size: int, theta: float, scaling: RopeScaling = UNSCALED, device: torch.device | None = None
) -> tuple[Tensor, float]:
    """(d/2,) the angle of each pair from one position to the next, and the factor of all queries and keys.

        linear   f / s                          every pair turns s times as slowly (Chen et al. 2023)
        ntk      f with θ · s^(d / (d - 2))     the fastest pair as before, the slowest s times as slowly
        yarn     f / s for slow pairs, f for fast ones, a ramp between; sharper attention (Peng et al. 2024)
        llama3   f / s for pairs that turn less than once in the trained length, f for more than 4 times, a ramp between
    """
    kind, factor, trained = scaling
    if kind == "ntk":
        theta *= factor ** (size / (size - 2))
    turns = frequencies(size, theta, device)
    if kind == "linear":
        turns = turns / factor
    if kind == "llama3":
        rotations = trained * turns / (2 * math.pi)
        kept = ((rotations - SLOW) / (LLAMA3_FAST - SLOW)).clamp(0, 1)
        turns = turns / factor * (1 - kept) + turns * kept
    if kind != "yarn":
        return turns, 1.0
    slow = _yarn_ramp(size, theta, trained, device)
    return turns / factor * slow + turns * (1 - slow), 0.1 * math.log(factor) + 1.0


def _yarn_ramp(size: int, theta: float, trained: int, device: torch.device | None) -> Tensor:
    """(d/2,): 0 for pairs that turn fast, 1 for those that turn less than once in the trained length."""

    def pair(rotations: float) -> float:    # the one that turns so often in the trained length
        return size * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(FAST)), 0), min(math.ceil(pair(SLOW)), size - 1)
    ramp = (torch.arange(size // 2, dtype=torch.float32, device=device) - low) / (max(high - low, 0) or 0.001)
    return ramp.clamp(0, 1)


def apply_rope(x: Tensor, rope: Rope) -> Tensor:
    """(B, T, H, d): number i of the first half and number i of the second are a point in a plane, which is rotated.

        (a, b) → (a cos - b sin, b cos + a sin)
    """
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


# Added to the scores


class ALiBi(nn.Module):
    """Attention with linear biases: -slope · distance, with a slope for each head and no parameter.

    The slopes are 2^(-8i/H) for i = 1 … H. Where H is no power of 2, they are those of the power below it, and every
    second one of twice that power.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, T), (C,) or (B, 1, C) -> (B, H, T, C)"""
        distance = (queries[..., None] - keys)[:, None].abs()
        slopes = torch.tensor(alibi_slopes(self.heads), device=queries.device)
        return -slopes[:, None, None] * distance


def alibi_slopes(heads: int) -> list[float]:
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    return slopes + [2 ** (-4 * i / power) for i in range(1, 2 * (heads - power), 2)]


class RelativeBias(nn.Module):
    """A learned bias for each head and distance. Half of the buckets hold one distance each, the others a range."""

    def __init__(self, heads: int, *, bidirectional: bool = False, buckets: int = 32, furthest: int = 128):
        super().__init__()
        self.bidirectional, self.buckets, self.furthest = bidirectional, buckets, furthest
        self.weight = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(B, T), (C,) or (B, 1, C) -> (B, H, T, C)"""
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

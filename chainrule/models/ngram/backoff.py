"""The ladder that an n-gram climbs for a token: what each order counted, what it leaves to the order below, its answer.

    kneser-ney    p(w | h) = (c(hw) - D) / c(h·) + γ(h) p(w | h'),    γ(h) = (D₁ N₁ + D₂ N₂ + D₃ N₃) / c(h·)

N₁, N₂ and N₃ words were counted once, twice and more often after h. Counts are those that the estimator went by; they
are known where no gram was left out.

Shapes: T tokens, K words that follow their contexts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Counted:
    """What one order counted for each of T tokens."""

    gram: Tensor                 # (T,) c(hw)
    total: Tensor                # (T,) c(h·)
    kinds: Tensor                # (T, 3) N₁, N₂, N₃: words that follow h once, twice, more often
    discounts: Sequence[float]   # D of 0, 1, 2, and 3 or more; zeros where an estimator holds nothing back

    @property
    def held_back(self) -> Tensor:
        """(T,) γ(h): the share of h that its discounts leave to the order below."""
        held = self.kinds.double() @ torch.tensor(self.discounts[1:], dtype=torch.float64, device=self.kinds.device)
        return held / self.total.clamp(min=1)


@dataclass(frozen=True)
class Rung:
    """What one order says of each of T tokens."""

    order: int
    found: Tensor                # (T,) whether the gram is in the tables
    weight: Tensor               # (T,) what p(w | h') is multiplied with; 1 where nothing follows h in the tables
    probability: Tensor          # (T,) p(w | h)
    counted: Counted | None      # None: counts were not kept


def add_up(counts: Tensor, parents: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(K,) counts, and to which of the rows each belongs -> (rows,) their sums, and (rows, 3) N₁, N₂, N₃."""
    total = torch.zeros(rows, dtype=torch.int64, device=counts.device).index_add_(0, parents, counts)
    kinds = torch.bincount(parents * 4 + counts.clamp(max=3), minlength=rows * 4).view(rows, 4)
    return total, kinds[:, 1:]


def at(places: Tensor, values: Tensor, otherwise: Tensor) -> Tensor:
    """`values` at the places, and `otherwise` where a place is -1."""
    filled, known = otherwise.clone(), places >= 0
    filled[known] = values[places[known]].to(filled.dtype)
    return filled

"""Back-off, step by step: the counts, the back-off weight and the probability of each order for each token.

    kneser-ney    p(w | h) = (c(hw) - D) / c(h·) + γ(h) p(w | h'),    γ(h) = (D₁ N₁ + D₂ N₂ + D₃ N₃) / c(h·)

N₁, N₂ and N₃ words were counted once, twice and more often after h. Counts are those that the estimator used; they are
known unless n-grams were left out by cutoffs or pruning.

Shapes: T tokens, K words that follow their contexts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ContextCounts:
    """The counts of one order for each of T tokens w after their contexts h."""

    ngram: Tensor                # (T,) c(hw)
    total: Tensor                # (T,) c(h·)
    types: Tensor                # (T, 3) N₁, N₂, N₃: distinct words that follow h once, twice, more often
    discounts: Sequence[float]   # D of 0, 1, 2, and 3 or more; zeros for an estimator without discounts

    @property
    def discounted_mass(self) -> Tensor:
        """(T,) γ(h): the probability mass of h that the discounts leave to the order below."""
        mass = self.types.double() @ torch.tensor(self.discounts[1:], dtype=torch.float64, device=self.types.device)
        return mass / self.total.clamp(min=1)


@dataclass(frozen=True)
class BackoffStep:
    """One order's part in the probability of each of T tokens."""

    order: int
    found: Tensor                    # (T,) whether the n-gram is in the tables
    weight: Tensor                   # (T,) the factor of p(w | h'); 1 where no word follows h in the tables
    probability: Tensor              # (T,) p(w | h)
    counts: ContextCounts | None     # None: counts were not kept


def sum_by_context(counts: Tensor, parents: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """(K,) counts and the row of each -> (rows,) their sums, and (rows, 3) N₁, N₂, N₃."""
    total = torch.zeros(rows, dtype=torch.int64, device=counts.device).index_add_(0, parents, counts)
    types = torch.bincount(parents * 4 + counts.clamp(max=3), minlength=rows * 4).view(rows, 4)
    return total, types[:, 1:]


def gather_or(places: Tensor, values: Tensor, otherwise: Tensor) -> Tensor:
    """values[places], and `otherwise` where a place is -1."""
    filled, known = otherwise.clone(), places >= 0
    filled[known] = values[places[known]].to(filled.dtype)
    return filled

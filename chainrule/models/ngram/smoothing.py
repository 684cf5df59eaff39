"""Smoothing of n-gram counts: interpolated modified Kneser–Ney (absolute discounting), add-k, maximum likelihood.

    p(w | h) = table(hw)                 if hw is in the tables
             = backoff(h) · p(w | h')    otherwise; h' is h without its first word, and backoff is 1 where h is unknown
    kneser-ney: table(hw) = (c(hw) - D) / c(h·) + γ(h) p(w | h'),   backoff(h) = γ(h) = (D₁N₁ + D₂N₂ + D₃N₃) / c(h·)

Every estimator fills the same tables. N₁, N₂, N₃ words were counted once, twice and more often after h. Below the
highest order Kneser–Ney uses continuation counts, except for n-grams that begin with the boundary, which keep raw
counts.

Shapes: T tokens, K words that follow their contexts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.model import BOUNDARY
from chainrule.models.ngram.counts import Children, Ints, Order

# Back-off, step by step: counts, back-off weight and probability of each order for each token, to be shown


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


Floats = NDArray[np.float64]
Filled: TypeAlias = tuple[Floats, Floats, Ints]   # prob, backoff and counts of a table


@dataclass
class BackoffTable(Children):
    """The estimated probabilities of one order, not yet as logarithms."""

    prob: Floats       # (N,) p(last word | context)
    backoff: Floats    # (C,) back-off weight of each context; 1 where no word was seen after it
    suffixes: Ints     # (N,) index of the n-gram without its first word, one order below
    counts: Ints | None = None    # (N,) the counts that the estimator used; None: unknown, or some were left out


def estimate(orders: list[Order], estimator: str, k: float, cutoffs: Sequence[int] = ()) -> Iterator[BackoffTable]:
    """The tables, order by order; `orders` is emptied, so that counts and tables are not all in memory together.

    The probability of an n-gram of order o with at most cutoffs[o - 1] occurrences is left to back-off.
    """
    fill, vocab = _ESTIMATORS[estimator], len(orders[0])
    lower = np.full(1, 1 / vocab)                                # below the unigrams is the uniform distribution
    suffixes: Ints = np.zeros(vocab, np.int32)
    begins = np.zeros(vocab, bool)                               # n-grams that begin with the boundary
    for index in range(len(orders)):
        order = orders.pop(0)
        higher = orders[0] if orders else None
        raw = np.ones(len(order), bool) if higher is None else begins    # an empty order is one too
        evidence = Evidence(order, higher, raw, lower[suffixes], below_cutoff(order, index, cutoffs), k, vocab)
        prob, backoff, counts = fill(evidence)
        yield BackoffTable(order.words, order.starts, prob, backoff, suffixes, counts)
        if higher is not None:
            suffixes, lower = higher.suffixes, prob
            begins = higher.spread(begins if index else order.words == BOUNDARY)


def below_cutoff(order: Order, index: int, cutoffs: Sequence[int]) -> NDArray[np.bool_] | None:
    """Which n-grams of an order the cutoff leaves out; None where there is no cutoff. Unigrams are never left out."""
    cutoff = cutoffs[min(index, len(cutoffs) - 1)] if cutoffs and index else 0
    return order.counts <= cutoff if cutoff else None


@dataclass
class Evidence:
    """The input of an estimator for one order."""

    order: Order
    higher: Order | None                  # the next order; None at the highest
    raw: NDArray[np.bool_]                # (N,) n-grams with raw counts: of the highest order, or after the boundary
    lower: Floats                         # (N,) p(w | h'), one order below
    left_out: NDArray[np.bool_] | None    # (N,) n-grams that a cutoff leaves out; None: none
    k: float
    vocab: int

    def backoff_weight(self, missing: Floats) -> Floats:
        """(C,) the back-off weight that gives the `missing` probability to the words that are not in the table."""
        lower = self.lower if self.left_out is None else np.where(self.left_out, 0, self.lower)
        rest = 1 - self.order.sum_children(lower)
        return np.divide(missing, rest, out=np.zeros_like(missing), where=(missing > 0) & (rest > 0))


def kneser_ney(evidence: Evidence) -> Filled:
    """Interpolated modified Kneser–Ney (Chen & Goodman 1998): absolute discounting with three discounts D.

        p(w | h) = (c(hw) - D(c(hw))) / c(h·) + γ(h) p(w | h')

    Below the highest order c is the continuation count: the number of distinct words seen before the n-gram.
    """
    order, counts = evidence.order, evidence.order.counts
    if evidence.higher is not None:
        continuation = np.bincount(evidence.higher.suffixes, minlength=len(counts))
        counts = np.where(evidence.raw, counts, continuation)
    total = order.sum_children(counts)
    divisor = np.maximum(total, 1)
    discount = discounts(counts).take(np.minimum(counts, 3))
    removed = discount if evidence.left_out is None else np.where(evidence.left_out, counts, discount)
    gamma = np.where(total > 0, order.sum_children(removed) / divisor, 1)
    prob = counts - discount
    prob /= order.spread(divisor)
    prob += order.spread(gamma) * evidence.lower
    return prob, gamma, counts


def discounts(counts: Ints) -> Floats:
    """D(0) … D(3+) of modified Kneser–Ney from the counts of counts; ½, 1 and 1½ where a text is too small for them."""
    n = np.bincount(np.minimum(counts, 5), minlength=6)[:5].astype(float)
    usual = np.array([0, 0.5, 1, 1.5])
    if not n[1:].all():
        return usual
    y = n[1] / (n[1] + 2 * n[2])
    found = np.array([0, *(j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3))])
    return found if ((found >= 0) & (found <= np.arange(4))).all() else usual


def maximum_likelihood(evidence: Evidence) -> Filled:
    """p(w | h) = c(hw) / c(h·): relative frequencies, 0 for unseen words."""
    order, counts = evidence.order, evidence.order.counts
    total = order.sum_children(counts)
    divisor = np.maximum(total, 1)
    lost = np.zeros_like(divisor)
    if evidence.left_out is not None:
        lost = order.sum_children(counts * evidence.left_out) / divisor
    return counts / order.spread(divisor), np.where(total > 0, evidence.backoff_weight(lost), 1), counts


def add_k(evidence: Evidence) -> Filled:
    """Add-k (k = 1: Laplace): p(w | h) = (c(hw) + k) / (c(h·) + kV). After an unknown context p is uniform."""
    order, counts = evidence.order, evidence.order.counts
    total = order.sum_children(counts) + evidence.k * evidence.vocab
    prob = np.where(evidence.raw, (counts + evidence.k) / order.spread(total), 1 / evidence.vocab)
    kept = prob if evidence.left_out is None else np.where(evidence.left_out, 0, prob)
    seen = order.sum_children(evidence.raw) > 0
    return prob, np.where(seen, evidence.backoff_weight(1 - order.sum_children(kept)), 1), counts


_ESTIMATORS: dict[str, Callable[[Evidence], Filled]] = {
    "kneser-ney": kneser_ney,
    "mle": maximum_likelihood,
    "add-k": add_k,
}

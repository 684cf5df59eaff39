"""Exercise kneser-ney: interpolated modified Kneser–Ney smoothing of a bigram (Chen & Goodman 1998).

    p(w | v) = (c(v w) - D(c(v w))) / c(v ·) + γ(v) p(w),      γ(v) = (D₁ N₁(v) + D₂ N₂(v) + D₃ N₃(v)) / c(v ·)

D(0) = 0, D(1) = D₁, D(2) = D₂, and D(c) = D₃ for c ≥ 3. N₁(v), N₂(v), N₃(v): how many words followed v once, twice,
three times or more. γ(v) is the mass that the discounts took away. Shapes: T tokens, V vocabulary.
"""

import numpy as np


def discounts(counts: np.ndarray) -> np.ndarray:
    """Counts of any shape -> (4,): D(0) = 0, D₁, D₂, D₃, with n_j the number of counts that are j:

        Y = n₁ / (n₁ + 2 n₂),        D_j = j - (j + 1) Y n_{j+1} / n_j

    Where one of n₁ … n₄ is zero, D is 0, ½, 1, 1½.
    """
    raise NotImplementedError


def continuation_counts(c: np.ndarray) -> np.ndarray:
    """(V, V) counts c[v, w] -> (V,): after how many different words v has w been seen? (Not how often.)"""
    raise NotImplementedError


def unigram(continuations: np.ndarray) -> np.ndarray:
    """(V,) continuation counts N -> (V,): the lower order, discounted in the same way, above the uniform distribution:

        p(w) = (N(w) - D(N(w))) / N(·) + γ / V,        γ = Σ_w D(N(w)) / N(·)

    Its discounts come from the continuation counts.
    """
    raise NotImplementedError


def kneser_ney(tokens: np.ndarray, V: int) -> np.ndarray:
    """(T,) tokens of a text -> (V, V): p[v, w] = p(w | v) by the formula above; p(w) after a v that nothing follows."""
    raise NotImplementedError

"""Exercise bigram: a bigram model by maximum likelihood, and sampling with a temperature (the weighted die).

Token 0 is the boundary, which begins and ends every text. Shapes: T tokens, V vocabulary.
"""

import numpy as np


def bigram_mle(tokens: np.ndarray, V: int) -> np.ndarray:
    """(T,) tokens of a text, in order -> (V, V): p[v, w] = c(v w) / c(v ·).

    c(v w): how often w follows v; c(v ·): how often any token follows v. The row of a v that nothing follows is zero.
    """
    raise NotImplementedError


def softmax(y: np.ndarray, beta: float) -> np.ndarray:
    """(V,) logits -> (V,): softmax(β y)[w] = exp(β y_w) / Σ_v exp(β y_v), where the temperature is 1/β.

    β = 0 is uniform. β = inf gives all probability to the largest logit (shared equally by equal ones). The logits can
    be large: exp(1000) overflows, but softmax(y) = softmax(y - max y).
    """
    raise NotImplementedError


def roll(p: np.ndarray, u: float) -> int:
    """The side of a die with the weights p (V,) that the number u, 0 ≤ u < 1, selects.

    It is the first w with p_0 + … + p_w > u. So a side with p = 0 never comes up, whatever u is.
    """
    raise NotImplementedError


def write(p: np.ndarray, u: np.ndarray) -> list[int]:
    """Samples a text from p (V, V), with one number of u for each roll.

    Starts after the boundary: the first token is a roll of p[0]. Each token that was rolled is fed back: the next is a
    roll of its row. Ends before the boundary (which is not part of the text), or when u is used up.
    """
    raise NotImplementedError

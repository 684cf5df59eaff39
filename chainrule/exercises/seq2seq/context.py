"""Exercise context: attention of a decoder over its source (Bahdanau et al. 2015, Luong et al. 2015).

    e_ti = score(q_t, h_i)        α_t = softmax(e_t)        c_t = Σ_i α_ti h_i

q (B, T, H): the decoder's hidden vectors; h (B, S, H): the encoder's. Sources have different lengths: the first
`lengths` (B,) vectors of each are real, the others are padding.
Shapes: B rows, T target tokens, S source tokens, H units.
"""

import numpy as np


def dot_scores(q: np.ndarray, h: np.ndarray) -> np.ndarray:
    """e (B, T, S): e_ti = q_t · h_i."""
    raise NotImplementedError


def multiplicative_scores(q: np.ndarray, W: np.ndarray, h: np.ndarray) -> np.ndarray:
    """e (B, T, S): e_ti = q_tᵀ W h_i, with W (H, H)."""
    raise NotImplementedError


def align(e: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """α (B, T, S): softmax over the source tokens, where padding gets exactly 0 and the rest sums to 1.

    The scores can be large: subtract their maximum before exp.
    """
    raise NotImplementedError


def context_vectors(alpha: np.ndarray, h: np.ndarray) -> np.ndarray:
    """c (B, T, H): c_t = Σ_i α_ti h_i, the mean of the source's vectors, weighted by α."""
    raise NotImplementedError

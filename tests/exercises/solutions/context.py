import numpy as np


def dot_scores(q: np.ndarray, h: np.ndarray) -> np.ndarray:
    return np.einsum("bth,bsh->bts", q, h)


def multiplicative_scores(q: np.ndarray, W: np.ndarray, h: np.ndarray) -> np.ndarray:
    return np.einsum("bti,ij,bsj->bts", q, W, h)


def align(e: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    real = np.arange(e.shape[-1]) < lengths[:, None, None]
    e = np.where(real, e, -np.inf)
    weights = np.exp(e - e.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def context_vectors(alpha: np.ndarray, h: np.ndarray) -> np.ndarray:
    return np.einsum("bts,bsh->bth", alpha, h)

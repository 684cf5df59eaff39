import numpy as np


def discounts(counts: np.ndarray) -> np.ndarray:
    n = [np.sum(counts == j) for j in range(5)]
    if 0 in n[1:]:
        return np.array([0, 0.5, 1, 1.5])
    Y = n[1] / (n[1] + 2 * n[2])
    return np.array([0, *(j - (j + 1) * Y * n[j + 1] / n[j] for j in (1, 2, 3))])


def continuation_counts(c: np.ndarray) -> np.ndarray:
    return (c > 0).sum(0)


def unigram(continuations: np.ndarray) -> np.ndarray:
    D = discounts(continuations)[np.minimum(continuations, 3)]
    total = continuations.sum()
    return (continuations - D) / total + D.sum() / total / len(continuations)


def kneser_ney(tokens: np.ndarray, V: int) -> np.ndarray:
    c = np.zeros((V, V), int)
    np.add.at(c, (tokens[:-1], tokens[1:]), 1)
    D = discounts(c)[np.minimum(c, 3)]
    total = c.sum(1, keepdims=True)
    lower = unigram(continuation_counts(c))
    gamma = D.sum(1, keepdims=True) / np.maximum(total, 1)
    p = (c - D) / np.maximum(total, 1) + gamma * lower
    return np.where(total > 0, p, lower)

import numpy as np


def bigram_mle(tokens: np.ndarray, V: int) -> np.ndarray:
    c = np.zeros((V, V))
    np.add.at(c, (tokens[:-1], tokens[1:]), 1)
    return c / np.maximum(c.sum(1, keepdims=True), 1)


def softmax(y: np.ndarray, beta: float) -> np.ndarray:
    p = (y == y.max()).astype(float) if np.isinf(beta) else np.exp(beta * (y - y.max()))
    return p / p.sum()


def roll(p: np.ndarray, u: float) -> int:
    return int(np.searchsorted(np.cumsum(p), u, side="right"))


def write(p: np.ndarray, u: np.ndarray) -> list[int]:
    text, token = [], 0
    for number in u:
        token = roll(p[token], number)
        if token == 0:
            break
        text.append(token)
    return text

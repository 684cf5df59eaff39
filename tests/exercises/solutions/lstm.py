import numpy as np


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def lstm_step(
    x: np.ndarray, h: np.ndarray, C: np.ndarray, W: dict[str, np.ndarray], b: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    both = np.concatenate([h, x], -1)
    f, i, o = (sigmoid(both @ W[gate].T + b[gate]) for gate in "fio")
    candidate = np.tanh(both @ W["C"].T + b["C"])
    C = f * C + i * candidate
    return o * np.tanh(C), C


def lstm(
    x: np.ndarray, h0: np.ndarray, C0: np.ndarray, W: dict[str, np.ndarray], b: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    h, C, hs = h0, C0, []
    for t in range(x.shape[1]):
        h, C = lstm_step(x[:, t], h, C, W, b)
        hs.append(h)
    return np.stack(hs, 1), C

import numpy as np


def forward(pi: np.ndarray, a: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    alpha, c = np.zeros((len(x), len(pi))), np.zeros(len(x))
    predicted = pi
    for t, symbol in enumerate(x):
        message = b[:, symbol] * predicted
        c[t] = message.sum()
        alpha[t] = message / c[t]
        predicted = alpha[t] @ a
    return alpha, c


def log_likelihood(c: np.ndarray) -> float:
    return float(np.log(c).sum())


def backward(a: np.ndarray, b: np.ndarray, x: np.ndarray, c: np.ndarray) -> np.ndarray:
    beta = np.ones((len(x), len(a)))
    for t in range(len(x) - 2, -1, -1):
        beta[t] = a @ (b[:, x[t + 1]] * beta[t + 1]) / c[t + 1]
    return beta


def posteriors(alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return alpha * beta


def expected_transitions(
    alpha: np.ndarray, beta: np.ndarray, c: np.ndarray, a: np.ndarray, b: np.ndarray, x: np.ndarray
) -> np.ndarray:
    xi = np.zeros_like(a)
    for t in range(len(x) - 1):
        xi += alpha[t][:, None] * a * (b[:, x[t + 1]] * beta[t + 1]) / c[t + 1]
    return xi

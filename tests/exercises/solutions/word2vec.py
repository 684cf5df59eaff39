import numpy as np


def sigmoid(z):
    return np.exp(-np.logaddexp(0, -z))


def noise_distribution(counts: np.ndarray) -> np.ndarray:
    powers = counts**0.75
    return powers / powers.sum()


def negative_sampling(
    v: np.ndarray, u: np.ndarray, negatives: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    z, z_k = u @ v, negatives @ v
    loss = float(np.logaddexp(0, -z) + np.logaddexp(0, z_k).sum())
    error, errors = sigmoid(z) - 1, sigmoid(z_k)
    return loss, error * u + errors @ negatives, error * v, errors[:, None] * v


def sgd_step(
    inputs: np.ndarray, outputs: np.ndarray, word: int, context: int, negatives: np.ndarray, lr: float
) -> float:
    loss, dv, du, dn = negative_sampling(inputs[word], outputs[context], outputs[negatives])
    inputs[word] -= lr * dv
    outputs[context] -= lr * du
    np.subtract.at(outputs, negatives, lr * dn)
    return loss

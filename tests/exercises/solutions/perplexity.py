import numpy as np


def cross_entropy(log_p: np.ndarray) -> float:
    return -float(np.mean(log_p))


def perplexity(log_p: np.ndarray) -> float:
    return float(np.exp(cross_entropy(log_p)))


def bits_per_byte(log_p: np.ndarray, text: str) -> float:
    return -float(np.sum(log_p)) / np.log(2) / len(text.encode("utf-8"))


def word_perplexity(bits_per_byte: float, text: str) -> float:
    return 2 ** (bits_per_byte * len(text.encode("utf-8")) / len(text.split()))

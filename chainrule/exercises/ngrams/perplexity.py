"""Exercise perplexity: cross-entropy, perplexity and bits per byte of a text.

Shapes: T tokens, the end of the text included.
"""

import numpy as np


def cross_entropy(log_p: np.ndarray) -> float:
    """(T,) log p(w_t | w_1 … w_{t-1}), natural logarithms -> H = -1/T Σ_t log p(w_t | …), in nats per token."""
    raise NotImplementedError


def perplexity(log_p: np.ndarray) -> float:
    """exp(H): how many equally likely tokens the model hesitates between. Infinite where a token had probability 0."""
    raise NotImplementedError


def bits_per_byte(log_p: np.ndarray, text: str) -> float:
    """Σ_t -log2 p(w_t | …) / bytes, over the bytes of the text in UTF-8 (not its characters, not its tokens).

    The tokens can be characters, subwords or words: the number of bytes stays, so the figure compares all models.
    """
    raise NotImplementedError


def word_perplexity(bits_per_byte: float, text: str) -> float:
    """The perplexity per word of a model with so many bits per byte: 2^(bits of the text / words of the text).

    Words are what spaces and line ends separate.
    """
    raise NotImplementedError

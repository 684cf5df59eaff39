"""Exercise word2vec: the loss of skip-gram with negative sampling, and its gradient (Mikolov et al. 2013).

v (E,): the vector of a word; u (E,): the output vector of a word in its context; negatives (K, E): the output vectors
of K words that were drawn from the noise distribution. Write the gradients by hand, without autograd.
Shapes: E embedding, K negatives, V vocabulary.
"""

import numpy as np


def noise_distribution(counts: np.ndarray) -> np.ndarray:
    """(V,) how often each word occurs -> (V,): p(w) ∝ count(w)^0.75, from which negatives are drawn."""
    raise NotImplementedError


def negative_sampling(
    v: np.ndarray, u: np.ndarray, negatives: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """The loss, and its gradients with respect to v (E,), u (E,) and negatives (K, E):

        ℓ = -log σ(u · v) - Σ_k log σ(-u_k · v)

    The dot products can be large: log σ(z) = -log(1 + exp(-z)) must not become -inf where z is -1000.
    (np.logaddexp(0, z) is log(1 + exp(z)).)
    """
    raise NotImplementedError


def sgd_step(
    inputs: np.ndarray, outputs: np.ndarray, word: int, context: int, negatives: np.ndarray, lr: float
) -> float:
    """One step of gradient descent on one pair, in place: inputs (V, E) holds v, outputs (V, E) holds u.

    `word` and `context` are ids, `negatives` (K,) ids too, of which the same one can occur twice: then its gradient
    counts twice. All gradients are taken before any vector changes. Returns the loss before the step.
    """
    raise NotImplementedError

"""Exercise beam-search: the most likely texts that a search over a few partial texts finds.

Token 0 is the boundary, which ends a text. Shapes: V vocabulary.
"""

from collections.abc import Callable

import numpy as np

Tokens = tuple[int, ...]


def length_penalty(n: int, alpha: float) -> float:
    """((5 + n) / 6)^alpha (Wu et al. 2016): what log p of a text of n tokens, its end included, is divided by."""
    raise NotImplementedError


def beam_search(
    log_probs: Callable[[Tokens], np.ndarray], width: int, alpha: float, limit: int
) -> list[tuple[Tokens, float]]:
    """The finished texts, best first: pairs of the tokens (without the boundary) and the score log p / length_penalty.

    `log_probs(tokens)` (V,) gives log p of every token after these. The search begins with the empty text. Each step:

    1. every live hypothesis is extended by every token; log p of a hypothesis is the sum over its tokens
    2. the `width` extensions with the highest log p of all stay (of all together, not of each hypothesis)
    3. those of them that end with the boundary are finished and leave the beam; the others are the live ones

    A text has at most `limit` tokens: a live hypothesis that has `limit` can only be extended by the boundary. The
    search ends when no hypothesis is live. log p of a text includes its end.
    """
    raise NotImplementedError

from collections.abc import Callable

import numpy as np

Tokens = tuple[int, ...]


def length_penalty(n: int, alpha: float) -> float:
    return ((5 + n) / 6) ** alpha


def beam_search(
    log_probs: Callable[[Tokens], np.ndarray], width: int, alpha: float, limit: int
) -> list[tuple[Tokens, float]]:
    live, finished = [((), 0.0)], []
    while live:
        extended = []
        for tokens, log_p in live:
            new = log_probs(tokens)
            choices = range(len(new)) if len(tokens) < limit else [0]
            extended += [((*tokens, token), log_p + float(new[token])) for token in choices]
        extended.sort(key=lambda pair: -pair[1])
        kept = extended[:width]
        finished += [
            (tokens[:-1], log_p / length_penalty(len(tokens), alpha)) for tokens, log_p in kept if tokens[-1] == 0
        ]
        live = [(tokens, log_p) for tokens, log_p in kept if tokens[-1] != 0]
    return sorted(finished, key=lambda pair: -pair[1])

"""Adapters of the lesson seq2seq: the only file that binds your code to the tests; yours to change."""


def dot_scores(q, h):
    from context import dot_scores

    return dot_scores(q, h)


def multiplicative_scores(q, W, h):
    from context import multiplicative_scores

    return multiplicative_scores(q, W, h)


def align(e, lengths):
    from context import align

    return align(e, lengths)


def context_vectors(alpha, h):
    from context import context_vectors

    return context_vectors(alpha, h)


def length_penalty(n, alpha):
    from beam_search import length_penalty

    return length_penalty(n, alpha)


def beam_search(log_probs, width, alpha, limit):
    from beam_search import beam_search

    return beam_search(log_probs, width, alpha, limit)

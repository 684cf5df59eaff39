"""Pruning of n-grams: count cutoffs, and entropy pruning (Stolcke 1998).

An n-gram that others need, as their context or as their suffix, is kept.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chainrule.models.ngram.counts import Order
from chainrule.models.ngram.smoothing import BackoffTable, Floats, below_cutoff

Keep = NDArray[np.bool_]


def above_cutoffs(orders: Sequence[Order], cutoffs: Sequence[int]) -> list[Keep]:
    """Which n-grams the cutoffs keep. The estimator has given the probability of the others to back-off."""
    cut = [below_cutoff(order, index, cutoffs) for index, order in enumerate(orders)]
    return [np.ones(len(order), bool) if drop is None else ~drop for order, drop in zip(orders, cut)]


def prune_by_entropy(tables: list[BackoffTable], threshold: float) -> list[BackoffTable]:
    """Removes, from the highest order down, n-grams whose removal raises the perplexity by less than `threshold`."""
    keep: list[Keep] = [np.ones(len(table.words), bool) for table in tables]
    histories = _history_log_probs(tables)
    needed = np.zeros(len(tables[-1].words), bool)
    for order in range(len(tables) - 1, 0, -1):
        table, lower = tables[order], tables[order - 1].prob[tables[order].suffixes]
        rise = np.expm1(_divergence(table, lower, histories[order - 1]))
        keep[order] = needed | (rise >= threshold)
        table.backoff = _renormalised_backoff(table, lower, keep[order])
        needed = np.zeros(len(tables[order - 1].words), bool)
        needed[table.suffixes[keep[order]]] = True
        needed |= table.sum_children(keep[order]) > 0
    return select_ngrams(tables, keep)


def _history_log_probs(tables: list[BackoffTable]) -> list[Floats]:
    """log p of each n-gram as a whole, as the probability p(h) of a context."""
    with np.errstate(divide="ignore"):
        logs = [np.log(tables[0].prob)]
        for table in tables[1:]:
            logs.append(table.spread(logs[-1]) + np.log(table.prob))
    return logs


def _divergence(table: BackoffTable, lower: Floats, history: Floats) -> Floats:
    """(N,) the relative entropy, in nats per word, between the models with and without each single n-gram:

    p(h) { p(w|h) [log p(w|h) - log p(w|h') - log α'(h)] + (1 - Σ p) [log α(h) - log α'(h)] }

    where α is the back-off weight of h and α' that without the n-gram.
    """
    spread = table.spread
    mass, rest = 1 - table.sum_children(table.prob), 1 - table.sum_children(lower)
    mass, rest = np.maximum(mass, 1e-12), np.maximum(rest, 1e-12)
    alpha = np.log(spread(mass / rest))
    without = np.log((spread(mass) + table.prob) / (spread(rest) + lower))
    lost = table.prob * (np.log(table.prob) - np.log(lower) - without) + spread(mass) * (alpha - without)
    divergence: Floats = np.exp(spread(history)) * lost
    return divergence


def _renormalised_backoff(table: BackoffTable, lower: Floats, keep: Keep) -> Floats:
    """The back-off weights that make each context's probabilities sum to one again."""
    mass, rest = 1 - table.sum_children(table.prob * keep), 1 - table.sum_children(lower * keep)
    changed = table.sum_children(~keep) > 0
    weights: Floats = np.where(changed, np.maximum(mass, 0) / np.maximum(rest, 1e-12), table.backoff)
    return weights


def select_ngrams(tables: list[BackoffTable], keep: list[Keep]) -> list[BackoffTable]:
    """The kept n-grams with new indices. The context and suffix of a kept n-gram must be kept too."""
    selected = [tables[0]]
    places = np.arange(len(tables[0].words))
    for order in range(1, len(tables)):
        table, kept = tables[order], keep[order]
        sizes = table.sum_children(kept).astype(np.int64)[keep[order - 1]]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        suffixes = places[table.suffixes[kept]]
        backoff = table.backoff[keep[order - 1]]
        selected.append(BackoffTable(table.words[kept], starts, table.prob[kept], backoff, suffixes))
        places = np.cumsum(kept) - 1
    return selected

"""Leaving grams out: by how seldom they were seen, or by how little they are missed (Stolcke 1998).

A gram that others need, as their context or as their suffix, stays.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chainrule.models.ngram.counts import Level, sum_children
from chainrule.models.ngram.smoothing import Floats, Table, dropped

Keep = NDArray[np.bool_]


def kept_by_count(levels: Sequence[Level], cutoffs: Sequence[int]) -> list[Keep]:
    """Which grams cut-offs spare. The estimator has given the share of the others to back-off."""
    drops = [dropped(level, order, cutoffs) for order, level in enumerate(levels)]
    return [np.ones(len(level), bool) if drop is None else ~drop for level, drop in zip(levels, drops)]


def prune_by_entropy(tables: list[Table], threshold: float) -> list[Table]:
    """Drop, from the highest order down, grams without which the perplexity rises by less than a share `threshold`."""
    keep: list[Keep] = [np.ones(len(table.words), bool) for table in tables]
    histories = _history_log_probs(tables)
    needed = np.zeros(len(tables[-1].words), bool)
    for order in range(len(tables) - 1, 0, -1):
        table, lower = tables[order], tables[order - 1].prob[tables[order].suffixes]
        rise = np.expm1(_divergence(table, lower, histories[order - 1]))
        keep[order] = needed | (rise >= threshold)
        table.left = _left_over(table, lower, keep[order])
        needed = np.zeros(len(tables[order - 1].words), bool)
        needed[table.suffixes[keep[order]]] = True
        needed |= sum_children(keep[order], table.starts) > 0
    return take(tables, keep)


def _history_log_probs(tables: list[Table]) -> list[Floats]:
    """log p of each gram as a whole, which is how often its context comes up."""
    with np.errstate(divide="ignore"):
        logs = [np.log(tables[0].prob)]
        for table in tables[1:]:
            logs.append(np.repeat(logs[-1], table.sizes) + np.log(table.prob))
    return logs


def _divergence(table: Table, lower: Floats, history: Floats) -> Floats:
    """(N,) the relative entropy, in nats per word, between the model with and without each gram by itself:

    p(h) { p(w|h) [log p(w|h) - log p(w|h') - log α'(h)] + (1 - Σ p) [log α(h) - log α'(h)] }

    where α is the back-off weight of h and α' what it becomes without the gram.
    """

    def spread(values: Floats) -> Floats:
        return np.repeat(values, table.sizes)

    mass, room = 1 - sum_children(table.prob, table.starts), 1 - sum_children(lower, table.starts)
    mass, room = np.maximum(mass, 1e-12), np.maximum(room, 1e-12)
    alpha = np.log(spread(mass / room))
    without = np.log((spread(mass) + table.prob) / (spread(room) + lower))
    lost = table.prob * (np.log(table.prob) - np.log(lower) - without) + spread(mass) * (alpha - without)
    divergence: Floats = np.exp(spread(history)) * lost
    return divergence


def _left_over(table: Table, lower: Floats, keep: Keep) -> Floats:
    """The back-off weights that make each context's probabilities sum to one again."""
    mass, room = 1 - sum_children(table.prob * keep, table.starts), 1 - sum_children(lower * keep, table.starts)
    changed = sum_children(~keep, table.starts) > 0
    weights: Floats = np.where(changed, np.maximum(mass, 0) / np.maximum(room, 1e-12), table.left)
    return weights


def take(tables: list[Table], keep: list[Keep]) -> list[Table]:
    """The kept grams, renumbered. What is kept has its context and suffix kept."""
    taken = [tables[0]]
    places = np.arange(len(tables[0].words))
    for order in range(1, len(tables)):
        table, kept = tables[order], keep[order]
        sizes = sum_children(kept, table.starts).astype(np.int64)[keep[order - 1]]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        suffixes = places[table.suffixes[kept]]
        taken.append(Table(table.words[kept], starts, table.prob[kept], table.left[keep[order - 1]], suffixes))
        places = np.cumsum(kept) - 1
    return taken

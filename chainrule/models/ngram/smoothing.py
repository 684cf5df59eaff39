"""From counts to probabilities. Every estimator fills the same tables, and all tables are read in the same way:

    p(w | h) = table(hw)                 if hw is in the tables
             = backoff(h) · p(w | h')    otherwise; h' is h without its first word, and backoff is 1 where h is unknown

Orders 2 … n are `Level`s of grams (see grams.py), level 0 the single words. Below the highest order only grams that
begin with the boundary have a whole context; those are counted as the highest order is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.model import BOUNDARY
from chainrule.models.ngram.counts import Ints, Level, sum_children

Floats = NDArray[np.float64]
Filled: TypeAlias = tuple[Floats, Floats, Ints]   # prob, left and counts of a table


@dataclass
class Table:
    """One order of a model that answers. Probabilities, not yet logs."""

    words: Ints        # (N,)
    starts: Ints       # (C + 1,) children of context c: starts[c]:starts[c + 1]
    prob: Floats       # (N,) p(last word | context)
    left: Floats       # (C,) back-off: what each context leaves to words never seen after it; 1 where none was
    suffixes: Ints     # (N,) place of the gram without its first word, one order down
    counts: Ints | None = None    # (N,) what the estimator took for counts; None: unknown, or some were left out

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)


def estimate(levels: list[Level], estimator: str, k: float, cutoffs: Sequence[int] = ()) -> Iterator[Table]:
    """The tables, order by order; the levels are used up, so that they need not all lie in memory beside them.

    A gram of order o seen at most cutoffs[o - 1] times leaves its share to back-off.
    """
    fill, vocab = _ESTIMATORS[estimator], len(levels[0])
    lower = np.full(1, 1 / vocab)                                # below the single words lies the uniform distribution
    suffixes: Ints = np.zeros(vocab, np.int32)
    begins = np.zeros(vocab, bool)                               # grams that begin with the boundary
    for order in range(len(levels)):
        level = levels.pop(0)
        above = levels[0] if levels else None
        whole = begins if above else np.ones(len(level), bool)
        evidence = Evidence(level, above, whole, lower[suffixes], dropped(level, order, cutoffs), k, vocab)
        prob, left, counts = fill(evidence)
        yield Table(level.words, level.starts, prob, left, suffixes, counts)
        if above:
            suffixes, lower = above.suffixes, prob
            begins = np.repeat(begins if order else level.words == BOUNDARY, above.sizes)


def dropped(level: Level, order: int, cutoffs: Sequence[int]) -> NDArray[np.bool_] | None:
    """Which grams of a level fall to the cut-off; None where there is none. Single words never do."""
    cutoff = cutoffs[min(order, len(cutoffs) - 1)] if cutoffs and order else 0
    return level.counts <= cutoff if cutoff else None


@dataclass
class Evidence:
    """All that an estimator may look at for one order."""

    level: Level
    above: Level | None                   # the next order; None at the highest
    whole: NDArray[np.bool_]              # (N,) grams of the highest order, or that begin with the boundary
    below: Floats                         # (N,) p(w | h'), one order down
    dropped: NDArray[np.bool_] | None     # (N,) grams that a cut-off takes away; None: nothing is
    k: float
    vocab: int

    def per_context(self, values: NDArray[Any]) -> Floats:
        return sum_children(values, self.level.starts)

    def spread(self, values: Floats) -> Floats:
        """(N,) each context's value, for each of its children."""
        return np.repeat(values, self.level.sizes)

    def left_over(self, missing: Floats) -> Floats:
        """(C,) the back-off weight that spreads the `missing` probability over the words that have no place."""
        below = self.below if self.dropped is None else np.where(self.dropped, 0, self.below)
        room = 1 - self.per_context(below)
        return np.divide(missing, room, out=np.zeros_like(missing), where=(missing > 0) & (room > 0))


def kneser_ney(evidence: Evidence) -> Filled:
    """Interpolated modified Kneser–Ney (Chen & Goodman 1998):

    p(w | h) = (c(hw) - D(c(hw))) / c(h·) + γ(h) p(w | h')

    Below the highest order c is the number of different words seen before a gram, not how often it was seen.
    """
    counts = evidence.level.counts
    if evidence.above is not None:
        different = np.bincount(evidence.above.suffixes, minlength=len(counts))
        counts = np.where(evidence.whole, counts, different)
    total = evidence.per_context(counts)
    some = np.maximum(total, 1)
    discount = discounts(counts)[np.minimum(counts, 3)]
    given_up = discount if evidence.dropped is None else np.where(evidence.dropped, counts, discount)
    left = np.where(total > 0, evidence.per_context(given_up) / some, 1)
    prob = counts - discount
    prob /= evidence.spread(some)
    prob += evidence.spread(left) * evidence.below
    return prob, left, counts


def discounts(counts: Ints) -> Floats:
    """D(0) … D(3+) from the counts of counts. Where those cannot tell (tiny or odd texts), the usual ½, 1 and 1½."""
    n = np.bincount(np.minimum(counts, 5), minlength=6)[:5].astype(float)
    usual = np.array([0, 0.5, 1, 1.5])
    if not n[1:].all():
        return usual
    y = n[1] / (n[1] + 2 * n[2])
    found = np.array([0, *(j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3))])
    return found if ((found >= 0) & (found <= np.arange(4))).all() else usual


def maximum_likelihood(evidence: Evidence) -> Filled:
    """p(w | h) = c(hw) / c(h·): what was counted, and nothing for what was not."""
    counts = evidence.level.counts
    total = evidence.per_context(counts)
    some = np.maximum(total, 1)
    lost = np.zeros_like(some)
    if evidence.dropped is not None:
        lost = evidence.per_context(counts * evidence.dropped) / some
    return counts / evidence.spread(some), np.where(total > 0, evidence.left_over(lost), 1), counts


def add_k(evidence: Evidence) -> Filled:
    """p(w | h) = (c(hw) + k) / (c(h·) + kV). Shorter contexts, which only an unknown one asks for, are uniform."""
    counts = evidence.level.counts
    total = evidence.per_context(counts) + evidence.k * evidence.vocab
    prob = np.where(evidence.whole, (counts + evidence.k) / evidence.spread(total), 1 / evidence.vocab)
    kept = prob if evidence.dropped is None else np.where(evidence.dropped, 0, prob)
    seen = evidence.per_context(evidence.whole) > 0
    return prob, np.where(seen, evidence.left_over(1 - evidence.per_context(kept)), 1), counts


_ESTIMATORS: dict[str, Callable[[Evidence], Filled]] = {
    "kneser-ney": kneser_ney,
    "mle": maximum_likelihood,
    "add-k": add_k,
}

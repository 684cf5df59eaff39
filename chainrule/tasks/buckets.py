"""Bucketing: batches of examples of similar length, in a new random order each epoch; a function of seed and step.

Lengths are rounded up to a few widths, so that shapes repeat and little is padding. Examples of one width are shuffled
among themselves, then the batches. Where the batches are cut depends on the widths alone, so all epochs have as many
steps.

Shapes: B rows, T tokens, S source.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.tasks.ragged import Ids

if TYPE_CHECKING:
    from chainrule.tasks.example_task import Encoded

GROWTH = 1.1         # how much wider a bucket is than the one before: about half of that is padding


class Buckets:
    def __init__(
        self, examples: "Encoded", *, seed: int, tokens: int | None = None, rows: int | None = None, multiple: int = 8
    ):
        """At most `rows` examples a step, of at most `tokens` tokens: rows times the wider of source and text."""
        if not len(examples):
            raise UserError("there are no examples to train on.")
        if tokens is None and rows is None:
            raise ValueError("say how large a batch may be: by tokens, by rows, or by both")
        self.examples, self.seed = examples, seed
        self.widths = tuple(bucket_widths(sizes, multiple) for sizes in examples.sizes)
        self._sorted = np.lexsort(self.widths[::-1])                       # by the first width, then by the second
        wide = np.max(self.widths, axis=0)[self._sorted]
        self.cuts = _cuts(wide, tokens or int(wide.max()) * (rows or len(examples)), rows or len(examples))
        self.steps = len(self.cuts) - 1
        self.epoch = float(self.steps)                                     # steps in which each example is visited once
        self._epoch, self._order = -1, (self._sorted, np.arange(self.steps))

    @property
    def rows(self) -> int:
        """Rows of the largest batch."""
        return int(np.diff(self.cuts).max())

    @property
    def length(self) -> int:
        """Tokens of the longest example, or of the longest source."""
        return int(np.max(self.examples.sizes))

    @property
    def targets(self) -> int:
        """Targets of a batch, on average."""
        return max(1, round(self.examples.target_count / self.epoch))

    def at(self, step: int) -> Batch:
        return self._batch(self.ids(step))

    def ids(self, step: int) -> Ids:
        """(B,) which examples the rows of a step are."""
        epoch, place = divmod(step, self.steps)
        order, batches = self._shuffled(epoch)
        return self._cut(order, int(batches[place]))

    def goes_on(self, step: int) -> bool:
        """Whether each row continues where the step before ended."""
        return False

    def every(self) -> Iterator[tuple[Ids, Batch]]:
        """Each example once, for evaluation: which they are, and the batch."""
        for place in range(self.steps):
            ids = self._cut(self._sorted, place)
            yield ids, self._batch(ids)

    def _cut(self, order: Ids, place: int) -> Ids:
        return order[self.cuts[place] : self.cuts[place + 1]]

    def _batch(self, ids: Ids) -> Batch:
        return self.examples.batch(ids, [int(widths[ids].max()) for widths in self.widths])

    def _shuffled(self, epoch: int) -> tuple[Ids, Ids]:
        """The examples of an epoch, sorted by width and otherwise random; and the order of its batches."""
        if epoch != self._epoch:
            random = np.random.default_rng((self.seed, epoch))
            shuffled = random.permutation(len(self.examples))
            order = shuffled[np.lexsort([widths[shuffled] for widths in self.widths[::-1]])]
            self._epoch, self._order = epoch, (order, random.permutation(self.steps))
        return self._order


def bucket_widths(sizes: Ids, multiple: int) -> Ids:
    """Sizes rounded up to a few widths: multiples, then ever wider ones; none is wider than the longest."""
    longest = int(sizes.max())
    widths = [multiple]
    while widths[-1] < longest:
        grown = -(-int(widths[-1] * GROWTH) // multiple) * multiple
        widths.append(max(widths[-1] + multiple, grown))
    edges = np.array(widths, np.int64)
    return np.minimum(edges[np.searchsorted(edges, sizes)], longest)


def _cuts(widths: Ids, tokens: int, most: int) -> Ids:
    """Where to cut a row of widths so that rows times the widest stay within `tokens`; a single wider one excepted."""
    cuts = [0]
    while cuts[-1] < len(widths):
        begin = cuts[-1]
        ahead = np.maximum.accumulate(widths[begin : begin + min(most, max(1, tokens // int(widths[begin])))])
        fitting = np.searchsorted(ahead * np.arange(1, len(ahead) + 1), tokens, "right")
        cuts.append(begin + max(int(fitting), 1))
    return np.array(cuts, np.int64)

"""A weighted mix of training texts (text.mix): batches in which each text has its share, whatever its size.

GPT-3 was trained on such a mix (Brown et al. 2020, table 2.2): 3 % of the tokens it read were of Wikipedia, which it
so read 3.4 times, and 60 % of a crawl of the web, of which it read 0.44. Which text a row is drawn from, and where it
begins, depends on the seed and on the number of the row alone, so training resumes at any step.

Shapes: B rows, T tokens, K texts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.text.batches import Streams, Tokens, Windows
from chainrule.text.corpus import MixedSplit

BLOCK = 32          # rows within which each text has its share, but for a row; more where a weight is small
STRETCH = 32        # steps in which a stream reads one text in order, at most
STRETCHES = 4       # that every text has at least, where it is long enough
APART = 1_000_003   # between the seeds of two texts, so that their windows are shuffled differently

Places = NDArray[np.int64]


class Mixture:
    """Which text each row is drawn from: in random order, and in each block of rows as often as its weight says."""

    def __init__(self, weights: Sequence[float], seed: int):
        self.shares = np.cumsum(weights) / sum(weights)
        self.block = max(BLOCK, math.ceil(2 * sum(weights) / min(weights)))
        self.seed, self._number = seed, -1
        self._texts = self._ranks = np.empty(0, np.int64)

    def rows(self, first: int, last: int) -> tuple[Places, Places]:
        """For the rows `first` up to `last`: the text of each, and how many rows before it were of the same text."""
        texts, numbers = [], []
        while first < last:
            block, begin = divmod(first, self.block)
            end = min(self.block, begin + last - first)
            of_text, rank = self._in_block(block)
            texts.append(of_text[begin:end])
            numbers.append(rank[begin:end] + self._before(block)[of_text[begin:end]])
            first += end - begin
        return np.concatenate(texts), np.concatenate(numbers)

    def drawn(self, rows: int) -> Places:
        """(K,) how many of the first `rows` are of each text."""
        block, rest = divmod(rows, self.block)
        return self._before(block) + np.bincount(self._in_block(block)[0][:rest], minlength=len(self.shares))

    def _before(self, block: int) -> Places:
        """(K,) rows of each text in all blocks before this one: their share, rounded."""
        ends = np.floor(self.shares * block * self.block + 0.5).astype(np.int64)
        return np.diff(ends, prepend=0)

    def _in_block(self, block: int) -> tuple[Places, Places]:
        """The text of each row of a block, and how many rows of the block before it are of the same text."""
        if block != self._number:
            counts = self._before(block + 1) - self._before(block)
            texts = np.random.default_rng((self.seed, block)).permutation(np.repeat(np.arange(len(counts)), counts))
            order = np.argsort(texts, kind="stable")
            ranks = np.empty_like(texts)
            ranks[order] = np.arange(len(texts)) - np.repeat(np.cumsum(counts) - counts, counts)
            self._number, self._texts, self._ranks = block, texts, ranks
        return self._texts, self._ranks


class MixedWindows(Windows):
    """Windows of several texts, drawn by weight; of each text every window once before any of it comes again.

    An epoch is as many windows as all texts have; a text with a large weight is then read more than once.
    """

    def __init__(self, split: MixedSplit, rows: int, length: int, seed: int):
        self.tokens, self.rows, self.length, self.seed = split.tokens, rows, length, seed
        self.packed = split.packed
        self.begins = [0, *(part.end for part in split.parts[:-1])]
        self.parts = [_windows(split, place, begin, rows, length, seed) for place, begin in enumerate(self.begins)]
        self.mixture = Mixture([part.weight for part in split.parts], seed)
        self.windows = sum(part.windows for part in self.parts)
        self.targets, self.epoch = rows * length, self.windows / rows

    def starts(self, step: int) -> Places:
        texts, numbers = self.mixture.rows(step * self.rows, (step + 1) * self.rows)
        starts = np.empty(self.rows, np.int64)
        for place, (begin, part) in enumerate(zip(self.begins, self.parts)):
            chosen = texts == place
            starts[chosen] = begin + part.window_starts(numbers[chosen])
        return starts

    def epochs(self, steps: int) -> list[float]:
        """How often each text was read in so many steps: tokens drawn, by tokens that it has."""
        drawn = self.mixture.drawn(steps * self.rows) * self.length
        return [float(tokens / (len(part.tokens) - 1)) for tokens, part in zip(drawn, self.parts)]

    def drawn_shares(self, steps: int) -> list[float]:
        """The share of each text in the tokens of so many steps."""
        return [float(drawn / (steps * self.rows)) for drawn in self.mixture.drawn(steps * self.rows)]


class MixedStreams(Streams):
    """Streams over several texts: each row reads a stretch of one text in order, and then of another.

    All rows begin a new stretch at the same step, with a new state.
    """

    def __init__(self, split: MixedSplit, rows: int, length: int, seed: int, reset: float = 0.0):
        self.tokens, self.rows, self.length, self.share = split.tokens, rows, length, reset
        shortest = min(part.tokens for part in split.parts)
        self.stretch = max(1, min(STRETCH, shortest // (STRETCHES * length)))
        self.stretches = MixedWindows(split, rows, self.stretch * length, seed)
        self.targets, self.epoch = rows * length, self.stretches.epoch * self.stretch

    def starts(self, step: int) -> Places:
        stretch, place = divmod(step, self.stretch)
        return self.stretches.starts(stretch) + place * self.length

    def goes_on(self, step: int) -> bool:
        return step % self.stretch > 0

    def epochs(self, steps: int) -> list[float]:
        return self.stretches.epochs(math.ceil(steps / self.stretch))

    def drawn_shares(self, steps: int) -> list[float]:
        return self.stretches.drawn_shares(math.ceil(steps / self.stretch))


def _windows(split: MixedSplit, place: int, begin: int, rows: int, length: int, seed: int) -> Windows:
    part = split.parts[place]
    tokens: Tokens = split.tokens[begin : part.end + 1]
    if len(tokens) <= length:
        raise UserError(f"{part.text} of text.mix is shorter than a row: {len(tokens) - 1} tokens to predict, and a "
                        f"row has {length}. Use more of it, a shorter context, or leave it out.")
    return Windows(tokens, rows, length, seed + place * APART)


@dataclass(frozen=True)
class PartReport:
    """What training has read of a text."""

    text: str
    weight: float       # its share of the tokens, as given
    share: float        # as drawn
    epochs: float       # how often it was read


def report_mix(split: MixedSplit, order: MixedWindows | MixedStreams, steps: int) -> list[PartReport]:
    drawn = zip(split.parts, order.drawn_shares(steps), order.epochs(steps), strict=True)
    return [PartReport(part.text, part.weight, share, epochs) for part, share, epochs in drawn]

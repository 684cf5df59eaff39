"""Counting grams by sorting: every gram of order 1 … n in a text, as a trie, with no loop over grams.

A gram of order k is named by its context (the place of the gram of order k - 1 before it) and its last word; grams are
sorted by that pair, so the words that follow one context lie side by side. A gram may begin or end with the boundary,
and none runs across one. Each gram also knows its `suffix`, the gram of order k - 1 without its first word.

A batch gives one `Run`; runs add by being kept, and are merged once, order by order. Beyond `memory` bytes they wait on
disk. Shapes: N grams of an order, C contexts of it, V vocabulary.
"""

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.model import BOUNDARY, Batch

Ints = NDArray[np.integer]


@dataclass
class Order:
    """All grams of one order, sorted by context and word, as one batch saw them."""

    contexts: Ints   # (N,) place of the context among the grams one shorter
    words: Ints      # (N,)
    counts: Ints     # (N,)
    suffixes: Ints   # (N,) place of the gram without its first word

    def __len__(self) -> int:
        return len(self.words)

    @property
    def bytes(self) -> int:
        return self.contexts.nbytes + self.words.nbytes + self.counts.nbytes + self.suffixes.nbytes

    def on_disk(self) -> "Order":
        return Order(*map(_on_disk, (self.contexts, self.words, self.counts, self.suffixes)))


@dataclass
class Grams:
    """The Statistics of an n-gram model: runs of counted grams, orders 2 … n, and the counts of single words."""

    unigrams: Ints                       # (V,)
    runs: list[list[Order]]              # runs[r][k - 2]: order k
    memory: int = 1 << 30                # bytes that runs may hold before they wait on disk
    nats: float = math.nan
    held: int = field(default=0)         # bytes in memory now

    def __add__(self, other: "Grams") -> "Grams":
        runs, held = self.runs + other.runs, self.held + other.held
        if held > self.memory:
            runs, held = [[order.on_disk() for order in run] for run in runs], 0
        return Grams(self.unigrams + other.unigrams, runs, self.memory, self.nats, held)


def count_grams(batch: Batch, order: int, vocab: int, memory: int = 1 << 30) -> Grams:
    """Every gram that ends on a counted target, by its place in the rows of the batch."""
    words, counted = _flatten(batch)
    unigrams = np.bincount(words[counted], minlength=vocab)
    places = words                                               # which gram of the order before ends at each position
    ends = np.flatnonzero(_has_context(batch))                   # positions where a gram of this order ends
    run: list[Order] = []
    for k in range(2, order + 1):
        if k > 2:
            ends = ends[(words[ends - 1] != BOUNDARY) & (places[ends - 1] >= 0)]
        size = vocab if k == 2 else len(run[-1])
        contexts, last, which = _name(places[ends - 1], words[ends], size, vocab)
        sizes = np.bincount(which[counted[ends]], minlength=len(last)).astype(np.int32)
        example = np.empty(len(last), np.int64)
        example[which] = ends                                    # any one place where the gram ends
        run.append(Order(contexts, last, sizes, places[example].astype(np.int32)))
        places = np.full(len(words), -1, np.int64)
        places[ends] = which
    return Grams(unigrams, [run], memory, held=sum(part.bytes for part in run))


def _flatten(batch: Batch) -> tuple[Ints, NDArray[np.bool_]]:
    """The rows end to end, each with the token before its first target; and which of all these are counted."""
    rows = np.concatenate([batch.tokens[:, :1].cpu().numpy(), batch.targets.cpu().numpy()], 1)
    counted = np.zeros(rows.shape, bool)
    counted[:, 1:] = batch.counted.cpu().numpy()
    return rows.reshape(-1).astype(np.int64, copy=False), counted.reshape(-1)


def _has_context(batch: Batch) -> NDArray[np.bool_]:
    """All but the first of each row and the padding; what is mere context counts as a context."""
    rows, columns = batch.targets.shape
    has = np.ones((rows, columns + 1), bool)
    has[:, 0] = False
    if batch.lengths is not None:
        has &= np.arange(columns + 1) <= batch.lengths.cpu().numpy()[:, None]
    return has.reshape(-1)


def _name(contexts: Ints, words: Ints, size: int, vocab: int) -> tuple[Ints, Ints, Ints]:
    """The distinct (context, word) pairs in order, and for each pair given its place among them."""
    keys = contexts * vocab + words
    bits = len(keys).bit_length()
    if (size * vocab).bit_length() + bits < 64:
        keys <<= bits                                            # the position rides along below the key, so that one
        keys |= np.arange(len(keys))                             # plain sort, far faster than an argsort, does both
        keys.sort()
        order, keys = keys & ((1 << bits) - 1), keys >> bits
    else:
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    fresh = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
    which = np.empty(len(keys), np.int64)
    which[order] = np.cumsum(fresh) - 1
    return (*_unpack(keys[fresh], vocab), which)


def _unpack(keys: Ints, vocab: int) -> tuple[Ints, Ints]:
    contexts = keys // vocab
    return contexts.astype(np.int32), (keys - contexts * vocab).astype(np.int32)


@dataclass
class Level:
    """All grams of one order, once all is counted: the children of context c lie at starts[c]:starts[c + 1]."""

    words: Ints      # (N,)
    starts: Ints     # (C + 1,)
    counts: Ints     # (N,)
    suffixes: Ints   # (N,)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)


def sum_children(values: NDArray[Any], starts: Ints) -> NDArray[np.float64]:
    """(N,) -> (C,): sums over the children of each context; 0 where there is none."""
    sums = np.zeros(len(starts) - 1)
    full = np.flatnonzero(np.diff(starts))
    if len(full):
        sums[full] = np.add.reduceat(values, starts[full], dtype=np.float64)
    return sums


def merge(grams: Grams, block: int = 1 << 24) -> list[Level]:
    """All runs as one trie. Level 0 holds the single words, each at its own place, whether it was seen or not."""
    vocab = len(grams.unigrams)
    everything = np.arange(vocab, dtype=np.int32)
    levels = [Level(everything, np.array([0, vocab]), grams.unigrams, np.zeros(0, np.int32))]
    places: list[Ints] = [everything] * len(grams.runs)          # where each run's grams of the order before have gone
    for k in range(len(grams.runs[0]) if grams.runs else 0):
        orders = [run[k] for run in grams.runs]
        level, places = _merge_order(orders, places, len(levels[-1]), vocab, block)
        levels.append(level)
    return levels


def _merge_order(
    orders: list[Order], places: list[Ints], contexts: int, vocab: int, block: int
) -> tuple[Level, list[Ints]]:
    """One order of all runs, and where each run's grams have gone. Contexts are taken in ranges, to bound memory."""
    if len(orders) == 1:                                         # nothing to merge with: the places are already right
        only = orders[0]
        level = Level(only.words, _starts(only.contexts, contexts), only.counts, only.suffixes)
        return level, [np.arange(len(only), dtype=np.int32)]
    total = sum(map(len, orders))
    words, counts, suffixes = [], [], []
    starts = np.zeros(contexts + 1, np.int64)
    moved: list[list[Ints]] = [[] for _ in orders]
    done = 0
    for first, last in _ranges(contexts, math.ceil(total / block)):
        slices = [_slice(order, place, first, last) for order, place in zip(orders, places)]
        keys = [place[order.contexts].astype(np.int64) * vocab + order.words for order, place in zip(slices, places)]
        union = np.unique(np.concatenate(keys))
        found = [np.searchsorted(union, key) for key in keys]
        count, suffix = np.zeros(len(union), np.int64), np.zeros(len(union), np.int32)
        for order, place, where, move in zip(slices, places, found, moved):
            count[where] += order.counts
            suffix[where] = place[order.suffixes]
            move.append((where + done).astype(np.int32))
        context, word = _unpack(union, vocab)
        starts[first : last + 1] = done + _starts(context - first, last - first)
        words.append(word)
        counts.append(count)
        suffixes.append(suffix)
        done += len(union)
    level = Level(np.concatenate(words), starts, np.concatenate(counts), np.concatenate(suffixes))
    return level, [np.concatenate(move) for move in moved]


def _starts(contexts: Ints, number: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(contexts, minlength=number))])


def _ranges(contexts: int, parts: int) -> Iterator[tuple[int, int]]:
    cuts = np.linspace(0, contexts, max(parts, 1) + 1).astype(int)
    return pairwise(cuts.tolist())


def _slice(order: Order, place: Ints, first: int, last: int) -> Order:
    """The grams whose context has gone to first … last; merging keeps the order, so they lie together."""
    ends = np.searchsorted(order.contexts, np.searchsorted(place, [first, last]).astype(order.contexts.dtype))
    part = slice(*ends)
    return Order(order.contexts[part], order.words[part], order.counts[part], order.suffixes[part])


def _on_disk(array: Ints) -> Ints:
    """The same array, held by a file that has no name and goes when the array does."""
    if isinstance(array, np.memmap) or not array.size:
        return array
    with tempfile.TemporaryFile(prefix="chainrule-grams-") as file:
        array.tofile(file)
        file.flush()
        return np.memmap(file, array.dtype, "r", shape=array.shape)

"""Counting grams by sorting: every gram of order 1 … n in a text, as a trie, with no loop over grams.

A gram of order k is named by its context (the place of the gram of order k - 1 before it) and its last word; grams are
sorted by that pair, so the words that follow one context lie side by side. A gram may begin or end with the boundary,
and none runs across one. Each gram also knows its `suffix`, the gram of order k - 1 without its first word.

A batch gives one `Run`; runs add by being kept, and are merged once, order by order. Beyond `memory` bytes they wait on
disk. Shapes: N grams of an order, C contexts of it, V vocabulary.
"""

import math
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.contexts, self.words, self.counts, self.suffixes

    def load(self) -> "Order":
        return self


class Spilled:
    """An Order that waits on disk, in a file that has no name and goes when this does."""

    bytes = 0

    def __init__(self, order: Order):
        self.size = len(order)
        self.types = [array.dtype for array in order.arrays()]
        self.file = tempfile.TemporaryFile(prefix="chainrule-grams-")  # noqa: SIM115 - it lives as long as this does
        for array in order.arrays():
            array.tofile(self.file)
        self.file.flush()
        weakref.finalize(self, self.file.close)

    def load(self) -> Order:
        """Memory-mapped: what is read comes in, and goes when the Order does."""
        if not self.size:
            return Order(*(np.zeros(0, type) for type in self.types))
        offsets = np.cumsum([0] + [self.size * type.itemsize for type in self.types[:-1]]).tolist()
        mapped = (np.memmap(self.file, type, "r", at, (self.size,)) for type, at in zip(self.types, offsets))
        return Order(*mapped)


@dataclass
class Grams:
    """The Statistics of an n-gram model: runs of counted grams, orders 2 … n, and the counts of single words."""

    unigrams: Ints                       # (V,)
    runs: list[list[Order | Spilled]]    # runs[r][k - 2]: order k
    memory: int = 1 << 28                # bytes that runs may hold before they wait on disk
    nats: float = math.nan

    def __add__(self, other: "Grams") -> "Grams":
        runs = self.runs + other.runs
        if sum(order.bytes for run in runs for order in run) > self.memory:
            runs = [[Spilled(order) if isinstance(order, Order) else order for order in run] for run in runs]
        return Grams(self.unigrams + other.unigrams, runs, self.memory)

    def tensors(self) -> Iterator[Tensor]:
        """How many orders a run has, the memory, the single words; then run by run and order by order."""
        yield torch.tensor([len(self.runs[0]), self.memory])
        yield torch.from_numpy(self.unigrams)
        for order in chain.from_iterable(self.runs):
            yield from (torch.from_numpy(np.array(array)) for array in order.load().arrays())

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Grams":
        orders, memory = tensors[0].tolist()
        unigrams, *arrays = (tensor.numpy() for tensor in tensors[1:])
        every = iter([Order(*arrays[place : place + 4]) for place in range(0, len(arrays), 4)])
        runs = len(arrays) // 4 // max(orders, 1)
        return cls(unigrams, [list(islice(every, orders)) for _ in range(runs)], memory)


def count_grams(batch: Batch, order: int, vocab: int, memory: int = 1 << 28) -> Grams:
    """Every gram that ends on a counted target, by its place in the rows of the batch."""
    words, counted = _flatten(batch)
    unigrams = np.bincount(words[counted], minlength=vocab)
    places = words                                               # which gram of the order before ends at each position
    ends = np.flatnonzero(_has_context(batch))                   # positions where a gram of this order ends
    run: list[Order | Spilled] = []
    size = vocab                                                 # grams of the order before
    for k in range(2, order + 1):
        if k > 2:
            ends = ends[(words[ends - 1] != BOUNDARY) & (places[ends - 1] >= 0)]
        contexts, last, which = _name(places[ends - 1], words[ends], size, vocab)
        sizes = np.bincount(which[counted[ends]], minlength=len(last)).astype(np.int32)
        example = np.empty(len(last), np.int64)
        example[which] = ends                                    # any one place where the gram ends
        run.append(Order(contexts, last, sizes, places[example].astype(np.int32)))
        places = np.full(len(words), -1, np.int64)
        places[ends] = which
        size = len(last)
    return Grams(unigrams, [run], memory)


def _flatten(batch: Batch) -> tuple[Ints, NDArray[np.bool_]]:
    """The rows end to end, each with the token before its first target; and which of all these are counted."""
    rows = np.concatenate([batch.tokens[:, :1].cpu().numpy(), batch.targets.cpu().numpy()], 1)
    counted = np.zeros(rows.shape, bool)
    counted[:, 1:] = batch.loss_mask.cpu().numpy()
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
    keys, order = _sort(contexts * vocab + words, np.arange(len(words)), size * vocab, len(words))
    fresh = _fresh(keys)
    which = np.empty(len(keys), np.int64)
    which[order] = np.cumsum(fresh) - 1
    return (*_unpack(keys[fresh], vocab), which)


def _sort(keys: Ints, riders: Ints, keys_below: int, riders_below: int) -> tuple[Ints, Ints]:
    """Keys in order, each with its rider; of equal keys the lower rider first. Overwrites the keys."""
    bits = riders_below.bit_length()
    if keys_below.bit_length() + bits >= 64:
        order = np.lexsort((riders, keys))
        return keys[order], riders[order]
    keys <<= bits                                                # the rider sits below the key in one number, so that a
    keys |= riders                                               # plain sort, far faster than an argsort, does for both
    keys.sort()
    riders = keys & ((1 << bits) - 1)
    keys >>= bits
    return keys, riders


def _fresh(keys: Ints) -> NDArray[np.bool_]:
    """Where a key differs from the one before it."""
    fresh = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
    return fresh


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


def merge(grams: Grams, block: int = 1 << 22) -> list[Level]:
    """All runs as one trie. Level 0 holds the single words, each at its own place, whether it was seen or not."""
    vocab = len(grams.unigrams)
    everything = np.arange(vocab, dtype=np.int32)
    levels = [Level(everything, np.array([0, vocab]), grams.unigrams, np.zeros(0, np.int32))]
    places: list[Ints] = [everything] * len(grams.runs)          # where each run's grams of the order before have gone
    for k in range(len(grams.runs[0]) if grams.runs else 0):
        orders = [run[k].load() for run in grams.runs]
        level, places = _merge_order(orders, places, len(levels[-1]), vocab, block)
        levels.append(level)
    return levels


def _merge_order(
    orders: list[Order], places: list[Ints], contexts: int, vocab: int, block: int
) -> tuple[Level, list[Ints]]:
    """One order of all runs, and where each run's grams have gone. Contexts are taken in ranges, to bound memory."""
    if len(orders) == 1:                                         # nothing to merge with: the places are already right
        only = orders[0]
        level = Level(only.words, _compact(_starts(only.contexts, contexts)), only.counts, only.suffixes)
        return level, [np.arange(len(only), dtype=np.int32)]
    total = sum(map(len, orders))
    words, counts, suffixes = [], [], []
    starts: list[Ints] = [np.zeros(1, np.int64)]
    moved: list[list[Ints]] = [[] for _ in orders]
    done = 0
    for first, last in _ranges(contexts, math.ceil(total / block)):
        slices = [_slice(order, place, first, last) for order, place in zip(orders, places)]
        keys = [place[order.contexts].astype(np.int64) * vocab + order.words for order, place in zip(slices, places)]
        runs = np.repeat(np.arange(len(orders)), [len(key) for key in keys])
        union, whose = _sort(np.concatenate(keys), runs, contexts * vocab, len(orders))
        fresh = _fresh(union)
        where = np.cumsum(fresh, dtype=np.int32) - 1
        context, word = _unpack(union[fresh], vocab)
        count, suffix = np.zeros(len(word), np.int64), np.zeros(len(word), np.int32)
        for run, (order, place) in enumerate(zip(slices, places)):
            mine = where[whose == run]                           # its grams came sorted, so they are still in its order
            count[mine] += order.counts
            suffix[mine] = place[order.suffixes]
            moved[run].append(mine + np.int32(done))
        starts.append(done + _starts(context - first, last - first)[1:])
        words.append(word)
        counts.append(_compact(count))
        suffixes.append(suffix)
        done += len(word)
    merged = [np.concatenate(parts) for parts in (words, starts, counts, suffixes)]
    return Level(merged[0], _compact(merged[1]), *merged[2:]), [np.concatenate(move) for move in moved]


def _starts(contexts: Ints, number: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(contexts, minlength=number))])


def _compact(numbers: Ints) -> Ints:
    """In half the memory where they fit; numbers that might not are never cut."""
    return numbers.astype(np.int32) if not len(numbers) or numbers.max() < 2**31 else numbers


def _ranges(contexts: int, parts: int) -> Iterator[tuple[int, int]]:
    cuts = np.linspace(0, contexts, max(parts, 1) + 1).astype(int)
    return pairwise(cuts.tolist())


def _slice(order: Order, place: Ints, first: int, last: int) -> Order:
    """The grams whose context has gone to first … last; merging keeps the order, so they lie together."""
    ends = np.searchsorted(order.contexts, np.searchsorted(place, [first, last]).astype(order.contexts.dtype))
    part = slice(*ends)
    return Order(order.contexts[part], order.words[part], order.counts[part], order.suffixes[part])

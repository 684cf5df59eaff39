"""N-gram counts by sorting: all n-grams of order 1 … n of a text as a trie, without a loop over n-grams.

An n-gram of order k is identified by its context (the index of the n-gram of order k - 1 before it) and its last word.
N-grams are sorted by that pair, so the words that follow one context lie side by side. An n-gram may begin or end with
the boundary, but none crosses one. Its `suffix` is the n-gram of order k - 1 without its first word.

Each batch gives one sorted run. Runs are collected, beyond `memory` bytes on disk, and merged once, order by order
(external merge sort). Shapes: N n-grams of an order, C contexts of it, V vocabulary.
"""

import math
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.model import BOUNDARY, Batch

Ints = NDArray[np.integer]
Number = TypeVar("Number", bound=np.generic)


@dataclass
class SortedRun:
    """The n-grams of one order in one batch, sorted by context and word."""

    contexts: Ints   # (N,) index of the context among the n-grams one shorter
    words: Ints      # (N,)
    counts: Ints     # (N,)
    suffixes: Ints   # (N,) index of the n-gram without its first word

    def __len__(self) -> int:
        return len(self.words)

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.contexts, self.words, self.counts, self.suffixes

    def load(self) -> "SortedRun":
        return self


class OnDisk:
    """A SortedRun in a temporary file, which is deleted with this object."""

    bytes = 0

    def __init__(self, run: SortedRun):
        self.size = len(run)
        self.types = [array.dtype for array in run.arrays()]
        self.file = tempfile.TemporaryFile(prefix="chainrule-counts-")  # noqa: SIM115 - it lives as long as this does
        for array in run.arrays():
            array.tofile(self.file)
        self.file.flush()
        weakref.finalize(self, self.file.close)

    def load(self) -> SortedRun:
        """Memory-mapped: only what is read is in memory."""
        if not self.size:
            return SortedRun(*(np.zeros(0, type) for type in self.types))
        offsets = np.cumsum([0] + [self.size * type.itemsize for type in self.types[:-1]]).tolist()
        mapped = (np.memmap(self.file, type, "r", at, (self.size,)) for type, at in zip(self.types, offsets))
        return SortedRun(*mapped)


@dataclass
class NGramCounts:
    """The Statistics of an n-gram model: unigram counts, and sorted runs of the orders 2 … n."""

    unigrams: Ints                          # (V,)
    runs: list[list[SortedRun | OnDisk]]    # runs[r][k - 2]: order k
    memory: int = 1 << 28                   # bytes of runs in memory; beyond it they are written to disk
    nats: float = math.nan

    def __add__(self, other: "NGramCounts") -> "NGramCounts":
        runs = self.runs + other.runs
        if sum(order.bytes for run in runs for order in run) > self.memory:
            runs = [[OnDisk(order) if isinstance(order, SortedRun) else order for order in run] for run in runs]
        return NGramCounts(self.unigrams + other.unigrams, runs, self.memory)

    def tensors(self) -> Iterator[Tensor]:
        """The number of orders in a run and the memory, the unigrams, then the runs order by order."""
        yield torch.tensor([len(self.runs[0]), self.memory])
        yield torch.from_numpy(self.unigrams)
        for order in chain.from_iterable(self.runs):
            yield from (torch.from_numpy(np.array(array)) for array in order.load().arrays())

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "NGramCounts":
        orders, memory = tensors[0].tolist()
        unigrams, *arrays = (tensor.numpy() for tensor in tensors[1:])
        every = iter([SortedRun(*arrays[place : place + 4]) for place in range(0, len(arrays), 4)])
        runs = len(arrays) // 4 // max(orders, 1)
        return cls(unigrams, [list(islice(every, orders)) for _ in range(runs)], memory)


def count_ngrams(batch: Batch, order: int, vocab: int, memory: int = 1 << 28) -> NGramCounts:
    """All n-grams of a batch up to an order; those that end on a target of the loss mask are counted."""
    words, counted = _flatten(batch)
    unigrams = np.bincount(words[counted], minlength=vocab)
    places = words                                               # the n-gram one shorter that ends at each position
    complete = _has_context(batch)                               # whether an n-gram of this order ends there
    run: list[SortedRun | OnDisk] = []
    size = vocab                                                 # number of n-grams one shorter
    for k in range(2, order + 1):
        if k > 2:
            complete[1:] &= (words[:-1] != BOUNDARY) & complete[:-1]
        ends: Ints = np.flatnonzero(complete)
        keys: Ints = places[ends - 1].astype(np.int64) * vocab + words[ends]
        keys, ends = sort_pairs(keys, ends, size * vocab, len(words))
        starts, which = _distinct(keys)
        sizes = np.bincount(which, counted[ends], len(starts)).astype(np.int32)
        run.append(SortedRun(*_unpack(keys[starts], vocab), sizes, places[ends[starts]]))
        places = np.empty(len(words), np.int32)                  # read only where an n-gram is complete
        places[ends] = which
        size = len(starts)
    return NGramCounts(unigrams, [run], memory)


def _flatten(batch: Batch) -> tuple[Ints, NDArray[np.bool_]]:
    """The rows end to end, each with the token before its first target; and which of these tokens are counted."""
    rows = np.concatenate([batch.tokens[:, :1].cpu().numpy(), batch.targets.cpu().numpy()], 1)
    counted = np.zeros(rows.shape, bool)
    counted[:, 1:] = batch.loss_mask.cpu().numpy()
    return rows.reshape(-1).astype(np.int32, copy=False), counted.reshape(-1)


def _has_context(batch: Batch) -> NDArray[np.bool_]:
    """All but the first token of each row and the padding; tokens that are only context are included."""
    rows, columns = batch.targets.shape
    has = np.ones((rows, columns + 1), bool)
    has[:, 0] = False
    if batch.lengths is not None:
        has &= np.arange(columns + 1) <= batch.lengths.cpu().numpy()[:, None]
    return has.reshape(-1)


def _distinct(keys: Ints) -> tuple[Ints, Ints]:
    """Of sorted keys: where each distinct one begins, and the index of each key among the distinct ones."""
    new = _differs(keys)
    return np.flatnonzero(new), np.cumsum(new, dtype=np.int32) - 1


def sort_pairs(keys: Ints, values: Ints, keys_below: int, values_below: int) -> tuple[Ints, Ints]:
    """Sorts keys, each with its value; of equal keys the lower value is first. Overwrites the keys."""
    bits = values_below.bit_length()
    if keys_below.bit_length() + bits >= 64:
        order = np.lexsort((values, keys))
        return keys[order], values[order]
    keys <<= bits                                                # key and value in one integer: a sort of integers is
    keys |= values                                               # much faster than an argsort
    keys.sort()
    values = keys & ((1 << bits) - 1)
    keys >>= bits
    return keys, values


def _differs(keys: Ints) -> NDArray[np.bool_]:
    """Where a key differs from the one before it."""
    differs = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=differs[1:])
    return differs


def _unpack(keys: Ints, vocab: int) -> tuple[Ints, Ints]:
    contexts = keys // vocab
    return contexts.astype(np.int32), (keys - contexts * vocab).astype(np.int32)


@dataclass
class Children:
    """The n-grams of one order as children of their contexts: those of context c lie at starts[c]:starts[c + 1]."""

    words: Ints      # (N,)
    starts: Ints     # (C + 1,)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def contexts(self) -> Ints:
        """(N,) the context of each n-gram."""
        return np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts))

    def sum_children(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """(N,) -> (C,): sums over the children of each context; 0 where it has none."""
        return np.bincount(self.contexts, values, len(self.starts) - 1).astype(float, copy=False)     # of none: of ints

    def spread(self, values: NDArray[Number]) -> NDArray[Number]:
        """(C,) -> (N,): each context's value for each of its children."""
        return values.take(self.contexts)


@dataclass
class Order(Children):
    """All n-grams of one order of the merged trie."""

    counts: Ints     # (N,)
    suffixes: Ints   # (N,)


def merge_counts(counts: NGramCounts, block: int = 1 << 22) -> list[Order]:
    """All runs as one trie. The first order holds every word of the vocabulary at its id, seen or not."""
    vocab = len(counts.unigrams)
    everything = np.arange(vocab, dtype=np.int32)
    orders = [Order(everything, np.array([0, vocab]), counts.unigrams, np.zeros(0, np.int32))]
    places: list[Ints] = [everything] * len(counts.runs)         # new indices of each run's n-grams one shorter
    for k in range(len(counts.runs[0]) if counts.runs else 0):
        runs = [run[k].load() for run in counts.runs]
        order, places = _merge_order(runs, places, len(orders[-1]), vocab, block)
        orders.append(order)
    return orders


def _merge_order(
    runs: list[SortedRun], places: list[Ints], contexts: int, vocab: int, block: int
) -> tuple[Order, list[Ints]]:
    """One order of all runs, and the new indices of each run's n-grams. Ranges of contexts bound the memory."""
    if len(runs) == 1:                                           # one run needs no merging: its indices are right
        only = runs[0]
        order = Order(only.words, _compact(_starts(only.contexts, contexts)), only.counts, only.suffixes)
        order.contexts = only.contexts
        return order, [np.arange(len(only), dtype=np.int32)]
    total = sum(map(len, runs))
    words, counts, suffixes = [], [], []
    starts: list[Ints] = [np.zeros(1, np.int64)]
    moved: list[list[Ints]] = [[] for _ in runs]
    done = 0
    for first, last in _ranges(contexts, math.ceil(total / block)):
        slices = [_slice(run, place, first, last) for run, place in zip(runs, places)]
        keys = [place[run.contexts].astype(np.int64) * vocab + run.words for run, place in zip(slices, places)]
        numbers = np.repeat(np.arange(len(runs)), [len(key) for key in keys])
        union, whose = sort_pairs(np.concatenate(keys), numbers, contexts * vocab, len(runs))
        new = _differs(union)
        where = np.cumsum(new, dtype=np.int32) - 1
        context, word = _unpack(union[new], vocab)
        count, suffix = np.zeros(len(word), np.int64), np.zeros(len(word), np.int32)
        for number, (run, place) in enumerate(zip(slices, places)):
            mine = where[whose == number]                        # a run is sorted, so its order is kept
            count[mine] += run.counts
            suffix[mine] = place[run.suffixes]
            moved[number].append(mine + np.int32(done))
        starts.append(done + _starts(context - first, last - first)[1:])
        words.append(word)
        counts.append(_compact(count))
        suffixes.append(suffix)
        done += len(word)
    merged = [np.concatenate(parts) for parts in (words, starts, counts, suffixes)]
    return Order(merged[0], _compact(merged[1]), *merged[2:]), [np.concatenate(move) for move in moved]


def _starts(contexts: Ints, number: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(contexts, minlength=number))])


def _compact(numbers: Ints) -> Ints:
    """As int32 where all of them fit."""
    return numbers.astype(np.int32) if not len(numbers) or numbers.max() < 2**31 else numbers


def _ranges(contexts: int, parts: int) -> Iterator[tuple[int, int]]:
    cuts = np.linspace(0, contexts, max(parts, 1) + 1).astype(int)
    return pairwise(cuts.tolist())


def _slice(run: SortedRun, place: Ints, first: int, last: int) -> SortedRun:
    """The n-grams whose context has a new index in first … last; merging keeps the order, so they lie together."""
    ends = np.searchsorted(run.contexts, np.searchsorted(place, [first, last]).astype(run.contexts.dtype))
    part = slice(*ends)
    return SortedRun(run.contexts[part], run.words[part], run.counts[part], run.suffixes[part])

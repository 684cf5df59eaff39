"""The n-grams that are features of a log-linear model: sorted tables, one for each order, in which no two n-grams meet.

An n-gram of order k is one integer: the place of its first k - 1 tokens in the table of order k - 1, times V, plus its
last token. It occurs in no more texts than its first k - 1 tokens do, so a table that leaves out rare n-grams still
holds the beginnings of all that it keeps.

Shapes: N texts, P tokens of all texts, F features, B rows, T tokens, V vocabulary, M n-grams found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.models.ngram.counts import sort_pairs
from chainrule.models.ngram.lookup import Lookup, positions

Ints = NDArray[Any]


class Found(NamedTuple):
    """The features in a batch, as often as they occur."""

    rows: Tensor        # (M,) the row of each
    ends: Tensor        # (M,) the position of its last token
    orders: Tensor      # (M,) how many tokens it has
    features: Tensor    # (M,) its number


@dataclass(frozen=True)
class Presence:
    """Which texts have which features, each pair once; by feature, then by text."""

    features: Ints      # (M,)
    texts: Ints         # (M,)
    size: int           # F
    count: int          # N

    def among(self, chosen: NDArray[np.bool_]) -> "Presence":
        """That of the chosen texts (N,), which get new numbers; the features keep their numbers."""
        number = np.cumsum(chosen) - 1
        here = chosen[self.texts]
        return Presence(self.features[here], number[self.texts[here]].astype(np.int32), self.size, int(chosen.sum()))


def build_tables(
    tokens: Ints, texts: Ints, count: int, order: int, vocab: int, min_count: int
) -> tuple[list[Ints], Presence]:
    """The n-grams up to an order that `min_count` texts or more have: their keys by order, and which texts have them.

    `tokens` and `texts` (P,): all texts end to end, and the number of the text that each token is in.
    """
    tables, features, rows, size = list[Ints](), list[Ints](), list[Ints](), 0
    at: Ints = np.arange(len(tokens))
    keys: Ints = tokens.astype(np.int64)
    goes_on = np.diff(texts, prepend=-1) == 0                    # the token before is in the same text
    below = vocab                                                # no key is as large
    for _ in range(order):
        keys, at = sort_pairs(keys, at, below, len(tokens))      # of equal keys, texts ascend
        kept, places, present = _count_texts(keys, texts[at], min_count)
        tables.append(kept)
        features.append(places[present] + np.int32(size))
        rows.append(texts[at[present]])
        size += len(kept)
        before = np.full(len(tokens), -1, np.int32)              # the n-gram that ends at each token
        before[at] = places
        at = np.flatnonzero(goes_on[1:] & (before[:-1] >= 0)) + 1
        keys, below = before[at - 1].astype(np.int64) * vocab + tokens[at], len(kept) * vocab
    return tables, Presence(np.concatenate(features), np.concatenate(rows), size, count)


def _count_texts(keys: Ints, texts: Ints, min_count: int) -> tuple[Ints, Ints, Ints]:
    """Of sorted keys and the texts that they are in: the distinct ones that enough texts have; the place of each among
    these, or -1; and where a text has one of them for the first time."""
    new = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    which = np.cumsum(new) - 1
    first = new | (np.diff(texts, prepend=-1) != 0)
    enough = np.bincount(which[first], minlength=int(new.sum())) >= min_count
    number = np.where(enough, np.cumsum(enough) - 1, -1).astype(np.int32)
    places = number[which]
    return keys[new][enough], places, np.flatnonzero(first & (places >= 0))


def find_features(lookups: Sequence[Lookup], tokens: Tensor, lengths: Tensor | None, vocab: int) -> Found:
    """All n-grams of a batch (B, T) that are in the tables."""
    parts = list(_find_by_order(lookups, tokens, lengths, vocab))
    return Found(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _find_by_order(
    lookups: Sequence[Lookup], tokens: Tensor, lengths: Tensor | None, vocab: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    flat, width, size = tokens.flatten(), tokens.shape[1], 0
    column = torch.arange(width, device=tokens.device).expand_as(tokens)
    real = (column >= 0) if lengths is None else column < lengths[:, None]
    at = positions(real.flatten())
    keys = flat.index_select(0, at).long()
    for order, lookup in enumerate(lookups, 1):
        place = lookup.find(keys)
        here = positions(place >= 0)
        at, place = at.index_select(0, here), place.index_select(0, here).long()
        yield at // width, at % width, torch.full_like(at, order), place + size
        size += len(lookup.keys)
        inside = positions((at % width + 1 < width) & real.flatten().roll(-1).index_select(0, at))
        at, place = at.index_select(0, inside) + 1, place.index_select(0, inside)
        keys = place * vocab + flat.index_select(0, at)


def ngram_tokens(tables: Sequence[Tensor], vocab: int, feature: int) -> list[int]:
    """The tokens of a feature."""
    order = 0
    while feature >= len(tables[order]):
        feature -= len(tables[order])
        order += 1
    tokens = []
    for table in reversed(tables[1 : order + 1]):
        feature, last = divmod(int(table[feature]), vocab)
        tokens.append(last)
    return [int(tables[0][feature]), *reversed(tokens)]

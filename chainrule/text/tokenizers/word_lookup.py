"""Vectorised word look-up: a hash table that finds the ids of all words of a text at once, without Python strings.

A word of up to sixteen bytes is given by its length, its first eight and its last eight bytes, read as two integers.
These three hash to a slot with one candidate, which is then compared. Longer words and hash collisions are few and go
through a dictionary.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
Places = NDArray[np.int64]
Numbers = NDArray[np.uint64]

LONG = 17                            # bytes; two integers cannot hold a word of this length
MASKS = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(LONG + 1)], np.uint64)
HEAD, TAIL, SIZE = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def find_words(text: bytes) -> tuple[Places, Places]:
    """Where each word begins, and where it ends; between them is ASCII's white space, as bytes.split defines it."""
    letters, white = np.frombuffer(text, np.uint8), np.ones(len(text) + 2, bool)
    np.less(letters - 9, 5, out=white[1:-1])                     # tab, newline, \v, \f, return
    white[1:-1] |= letters == 32
    edges = np.flatnonzero(white[1:] != white[:-1])
    return edges[0::2], edges[1::2]


class WordLookup:
    """A vocabulary: `find` returns the index of each word in it, or -1."""

    def __init__(self, words: Sequence[bytes]):
        self.places = {word: place for place, word in enumerate(words)}
        ends = np.cumsum([len(word) + 1 for word in words], dtype=np.int64) - 1
        begins = ends - np.fromiter(map(len, words), np.int64, len(words))
        self.head, self.tail, self.size = _numbers(b" ".join(words), begins, ends)
        self.shift = np.uint64(64 - max(16 * len(words), 1).bit_length())
        self.slots = np.full(1 << int(64 - self.shift), -1, np.int32)
        # backwards, so that of several words the first, which is the most frequent, keeps the slot
        self.slots[self._slot(self.head, self.tail, self.size)[::-1]] = np.arange(len(words), dtype=np.int32)[::-1]

    def __len__(self) -> int:
        return len(self.places)

    def _slot(self, head: Numbers, tail: Numbers, size: Numbers) -> Places:
        mixed: Numbers = ((head * HEAD) ^ (tail * TAIL >> np.uint64(7))) + size * SIZE
        return (mixed >> self.shift).astype(np.int64)

    def find(self, text: bytes, begins: Places, ends: Places) -> NDArray[np.int32]:
        head, tail, size = _numbers(text, begins, ends)
        place = self.slots[self._slot(head, tail, size)]
        same = np.ones(len(place), bool) if len(self) else np.zeros(len(place), bool)
        for ours, theirs in ((self.head, head), (self.tail, tail), (self.size, size)) if len(self) else ():
            same &= ours[place] == theirs
        unsure = np.flatnonzero((~same & (place >= 0)) | (size >= LONG))
        for at in unsure.tolist():
            place[at] = self.places.get(text[begins[at] : ends[at]], -1)
        return place


def _numbers(text: bytes, begins: Places, ends: Places) -> tuple[Numbers, Numbers, Numbers]:
    """The first eight bytes of each word, the last eight of one with more than eight, and its length up to LONG."""
    framed = bytes(8) + text + bytes(8)
    eights = np.ndarray((len(framed) - 7,), "<u8", framed, strides=(1,))   # the eight bytes from each place on
    size = np.minimum(ends - begins, LONG)
    more = np.flatnonzero(size > 8)
    tail = np.zeros(len(size), np.uint64)
    tail[more] = eights[ends[more]]
    return eights[begins + 8] & MASKS[size], tail, size.astype(np.uint64)


def count_words(texts: Iterable[bytes]) -> Counter[bytes]:
    """How often each word occurs. Words seen before are counted by look-up, only new ones in a dictionary."""
    known, counts = WordLookup([]), np.zeros(0, np.int64)
    fresh: Counter[bytes] = Counter()
    for text in texts:
        begins, ends = find_words(text)
        place = known.find(text, begins, ends)
        counts = counts + np.bincount(place[place >= 0], minlength=len(known))
        new = place < 0
        fresh.update(text[begin:end] for begin, end in zip(begins[new].tolist(), ends[new].tolist()))
        if len(fresh) > len(known):
            fresh.update(dict(zip(known.places, counts.tolist())))
            known, counts = WordLookup(list(fresh)), np.fromiter(fresh.values(), np.int64, len(fresh))
            fresh = Counter()
    fresh.update(dict(zip(known.places, counts.tolist())))
    return fresh

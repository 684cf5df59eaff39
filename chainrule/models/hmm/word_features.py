"""What a word looks like, as numbers, so that a word never seen is not a word of which nothing is known.

Each word has a row of keys from the general to the special: what sort of signs it has, its shape (`Xx-d` for Al-9), its
last 1 … 5 letters with that shape, the word in small letters, the word itself. A key is a 64-bit hash, so that tables
need no strings; 0 says that the word has no such part. A capital that may only be there because a sentence begins has
a shape of its own.

Shapes: B rows, T words, F = KEYS.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.model import IGNORE, Batch

SUFFIXES = 5          # the longest ending that is looked at
SHAPE = 6             # changes of class that a shape remembers
KEYS = SUFFIXES + 4


def spelled(sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[int]] | None = None) -> Batch:
    """Sentences as a batch for a tagger: `source` (B, T, F) has their spelling; padding is on the right."""
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.long)
    real = torch.arange(int(lengths.max()) if len(lengths) else 0) < lengths[:, None]
    source = torch.zeros(*real.shape, KEYS, dtype=torch.long)
    source[real] = torch.from_numpy(spell(sentences))
    targets = torch.full(real.shape, IGNORE)
    if tags is not None:
        targets[real] = torch.tensor([tag for row in tags for tag in row], dtype=torch.long)
    return Batch(torch.zeros_like(targets), targets, lengths, source=source, source_lengths=lengths)


def spell(sentences: Iterable[Sequence[str]]) -> NDArray[np.int64]:
    """The keys of each word of all sentences, end to end."""
    distinct: dict[tuple[str, bool], int] = {}
    which = [distinct.setdefault(word, len(distinct)) for sentence in sentences for word in _with_beginnings(sentence)]
    names = [name for word, begins in distinct for name in _names(word, begins)]
    return _hashes(names).reshape(-1, KEYS)[which]


def sort(word: str) -> str:
    """Figures, some figures, all capitals, a capital first, small letters, or anything else."""
    if any(map(str.isdigit, word)):
        return "d" if word.isdigit() else "d?"
    if word.isupper():
        return "XX" if len(word) > 1 else "X"
    return "Xx" if word[:1].isupper() else "x" if word.islower() else "?"


def shape(word: str) -> str:
    """The classes of its letters, runs as one: `iPhone-6` is `xXx-d`."""
    return "".join(kind for kind, _ in groupby(map(_kind, word)))[:SHAPE]


def _kind(letter: str) -> str:
    if letter.isalpha():
        return "X" if letter.isupper() else "x"
    return "d" if letter.isdigit() else letter


def _with_beginnings(sentence: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Each word, and whether it begins the sentence with a capital: marks and figures may stand before it."""
    begun = False
    for word in sentence:
        yield word, not begun and word[:1].isupper()
        begun = begun or any(map(str.isalpha, word))


def _names(word: str, begins: bool) -> list[str]:
    """One for each key; empty where the word is shorter than the ending."""
    look, small = f"{shape(word)}{'^' * begins}", word.lower()
    endings = [f"{look} {small[-size:]}" if size <= len(small) else "" for size in range(1, SUFFIXES + 1)]
    return [sort(word), look, *endings, small, word]


def _hashes(names: Iterable[str]) -> NDArray[np.int64]:
    nothing = bytes(8)
    digests = (blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() if name else nothing
               for name in names)
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)

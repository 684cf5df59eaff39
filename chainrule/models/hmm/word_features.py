"""Word features for tagging unknown words: word shape, suffixes, lower case and the word itself, as 64-bit hashes.

The features of a word go from general to specific: its character class, its shape (`Xx-d` for Al-9), its last 1 … 5
letters with that shape, the word in lower case, the word. A feature is a hash, so that tables need no strings; 0: the
word is too short for this suffix. A capital at the beginning of a sentence has a shape of its own.

Shapes: B rows, T words, F = FEATURES.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.model import IGNORE, Batch

SUFFIXES = 5              # letters of the longest suffix
SHAPE = 6                 # characters of a shape
FEATURES = SUFFIXES + 4


def tagging_batch(sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[int]] | None = None) -> Batch:
    """Sentences as a batch for HMMTagger: `source` (B, T, F) holds the word features; padding is on the right."""
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.long)
    real = torch.arange(int(lengths.max()) if len(lengths) else 0) < lengths[:, None]
    source = torch.zeros(*real.shape, FEATURES, dtype=torch.long)
    source[real] = torch.from_numpy(word_features(sentences))
    targets = torch.full(real.shape, IGNORE)
    if tags is not None:
        targets[real] = torch.tensor([tag for row in tags for tag in row], dtype=torch.long)
    return Batch(torch.zeros_like(targets), targets, lengths, source=source, source_lengths=lengths)


def word_features(sentences: Iterable[Sequence[str]]) -> NDArray[np.int64]:
    """(words, F) of all sentences, one after the other."""
    distinct: dict[tuple[str, bool], int] = {}
    which = [distinct.setdefault(word, len(distinct)) for sentence in sentences for word in _with_beginnings(sentence)]
    names = [name for word, begins in distinct for name in _names(word, begins)]
    return _hashes(names).reshape(-1, FEATURES)[which]


def feature_names(sentence: Sequence[str]) -> list[list[str]]:
    """(words, F) of one sentence, as text; empty where the word is shorter than the suffix."""
    return [_names(word, begins) for word, begins in _with_beginnings(sentence)]


def character_class(word: str) -> str:
    """Digits, some digits, all capitals, a capital first, lower case, or anything else."""
    if any(map(str.isdigit, word)):
        return "d" if word.isdigit() else "d?"
    if word.isupper():
        return "XX" if len(word) > 1 else "X"
    return "Xx" if word[:1].isupper() else "x" if word.islower() else "?"


def word_shape(word: str) -> str:
    """The classes of its characters, equal neighbours as one: `iPhone-6` is `xXx-d`."""
    return "".join(kind for kind, _ in groupby(map(_kind, word)))[:SHAPE]


def _kind(letter: str) -> str:
    if letter.isalpha():
        return "X" if letter.isupper() else "x"
    return "d" if letter.isdigit() else letter


def _with_beginnings(sentence: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Each word, and whether it begins the sentence with a capital; punctuation and digits may come before it."""
    begun = False
    for word in sentence:
        yield word, not begun and word[:1].isupper()
        begun = begun or any(map(str.isalpha, word))


def _names(word: str, begins: bool) -> list[str]:
    """One for each feature; empty where the word is shorter than the suffix."""
    shape, lower = f"{word_shape(word)}{'^' * begins}", word.lower()
    suffixes = [f"{shape} {lower[-size:]}" if size <= len(lower) else "" for size in range(1, SUFFIXES + 1)]
    return [character_class(word), shape, *suffixes, lower, word]


def _hashes(names: Iterable[str]) -> NDArray[np.int64]:
    absent = bytes(8)
    digests = (blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() if name else absent
               for name in names)
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)

"""Examples as tokens: flat arrays from which any rows can be padded into a Batch.

Shapes: B rows, T tokens, S source tokens or vectors, F numbers in a vector.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.model import BOUNDARY, IGNORE, Batch
from chainrule.text.tokenizers.tokenizer import Tokenizer

# Rows of unlike length, one behind the other in one array: light in memory, and quick to pad.
#
# Shapes: N entries in all, B rows chosen, F numbers in an entry that is a vector.

Places: TypeAlias = NDArray[np.int64]

AT_ONCE = 1 << 14        # texts encoded at a time, which bounds memory and changes no token


@dataclass(frozen=True)
class Ragged:
    flat: NDArray[Any]                     # (N,) or (N, F)
    ends: Places                           # where each row ends

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def begins(self) -> Places:
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])[: len(self.ends)]

    @cached_property
    def lengths(self) -> Places:
        return self.ends - self.begins

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.flat[self.begins[row] : self.ends[row]]

    def take(self, rows: Places) -> "Ragged":
        """Some of the rows, in the order given."""
        lengths = self.lengths[rows]
        return Ragged(self.flat[np.repeat(self.begins[rows], lengths) + within(lengths)], np.cumsum(lengths))

    def padded(self, rows: Places, width: int, fill: float = 0) -> NDArray[Any]:
        """(B, width) or (B, width, F): the rows, filled up on the right."""
        lengths, column = self.lengths[rows], np.arange(width)
        result = np.full((len(rows), width, *self.flat.shape[1:]), fill, self.flat.dtype)
        result[column < lengths[:, None]] = self.take(rows).flat
        return result

    def kept(self, sizes: Places, ends: bool) -> "Ragged":
        """The first entries of each row, as many as `sizes` says; or as many of its two ends together."""
        tail = np.minimum(sizes // 2 if ends else 0, sizes)
        place = within(self.lengths)
        first, last = (np.repeat(edge, self.lengths) for edge in (sizes - tail, self.lengths - tail))
        return Ragged(self.flat[(place < first) | (place >= last)], np.cumsum(np.minimum(sizes, self.lengths)))


def within(lengths: Places) -> Places:
    """0 1 2 … for each length, one behind the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def ragged(rows: Iterable[NDArray[Any]], dtype: Any = np.int32) -> Ragged:
    parts = [np.asarray(row, dtype) for row in rows]
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
    return Ragged(np.concatenate(parts) if parts else np.empty(0, dtype), ends)


def alike(entry: int, rows: int) -> Ragged:
    """Rows that are all one and the same entry."""
    return Ragged(np.full(rows, entry, np.int32), np.arange(1, rows + 1))


def beside(parts: Sequence[Ragged]) -> Ragged:
    """Each row the rows of all parts, one behind the other."""
    lengths = np.sum([part.lengths for part in parts], axis=0)
    ends = np.cumsum(lengths)
    flat = np.empty((int(ends[-1]) if len(ends) else 0, *parts[0].flat.shape[1:]), parts[0].flat.dtype)
    begins = ends - lengths
    for part in parts:
        flat[np.repeat(begins, part.lengths) + within(part.lengths)] = part.flat
        begins = begins + part.lengths
    return Ragged(flat, ends)


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Ragged:
    """The tokens of each text. Where lines are texts of their own, what came as one text stays one line."""
    texts = (" ".join(text.split("\n")) if tokenizer.lines else text for text in texts)
    parts = []
    while some := list(islice(texts, AT_ONCE)):
        parts.append(ragged(tokenizer.encode_many(some)))
    ends = [part.ends for part in parts]
    before = np.cumsum([0, *(end[-1] for end in ends)])
    flat = np.concatenate([np.empty(0, np.int32), *(part.flat for part in parts)])
    return Ragged(flat, np.concatenate([np.empty(0, np.int64), *(end + begin for end, begin in zip(ends, before))]))


class Examples(Protocol):
    def __len__(self) -> int: ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut, for people to read."""

    @property
    def sizes(self) -> tuple[Places, ...]:
        """How long each example is: in tokens, and in those of its source."""

    def batch(self, rows: Places, widths: Sequence[int]) -> Batch:
        """Some examples, padded to the widths."""


@dataclass(frozen=True)
class Classes:
    tokens: Ragged
    targets: Places                                  # a class for each; IGNORE: not known
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def answers(self) -> int:
        """What an epoch learns from."""
        return _known(self.targets)

    @property
    def sizes(self) -> tuple[Places, ...]:
        return (self.tokens.lengths,)

    def batch(self, rows: Places, widths: Sequence[int]) -> Batch:
        tokens = _tensor(self.tokens.padded(rows, widths[0], BOUNDARY))
        return Batch(tokens, _tensor(self.targets[rows]), _tensor(self.tokens.lengths[rows]))


@dataclass(frozen=True)
class Tags:
    tokens: Ragged
    places: Ragged                                   # of each word: where its last token stands
    targets: Ragged                                  # of each word: its tag; IGNORE: not known
    words: Ragged                                    # as they are written, less those that were cut away
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def answers(self) -> int:
        return _known(self.targets.flat)

    @property
    def sizes(self) -> tuple[Places, ...]:
        return (self.tokens.lengths,)

    def batch(self, rows: Places, widths: Sequence[int]) -> Batch:
        tokens = _tensor(self.tokens.padded(rows, widths[0], BOUNDARY))
        targets = np.full(tokens.shape, IGNORE, np.int64)
        places = self.places.take(rows)
        targets[np.repeat(np.arange(len(rows)), places.lengths), places.flat] = self.targets.take(rows).flat
        return Batch(tokens, torch.from_numpy(targets), _tensor(self.tokens.lengths[rows]))


@dataclass(frozen=True)
class Sequences:
    source: Ragged                                   # (N,) tokens, or (N, F) vectors
    targets: Ragged                                  # tokens without boundaries
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    @property
    def answers(self) -> int:
        return len(self.targets.flat) + len(self)          # the end of each, too

    @property
    def sizes(self) -> tuple[Places, ...]:
        return self.targets.lengths + 1, self.source.lengths

    def batch(self, rows: Places, widths: Sequence[int]) -> Batch:
        both = np.full((len(rows), widths[0] + 1), BOUNDARY, np.int64)
        both[:, 1:] = self.targets.padded(rows, widths[0], BOUNDARY)
        read = torch.from_numpy(both)
        return Batch(
            read[:, :-1],
            read[:, 1:],
            _tensor(self.targets.lengths[rows] + 1),
            source=_tensor(self.source.padded(rows, widths[1], BOUNDARY)),
            source_lengths=_tensor(self.source.lengths[rows]),
        )


def _known(targets: NDArray[Any]) -> int:
    return int((targets != IGNORE).sum())


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.int64))

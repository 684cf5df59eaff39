"""Examples as tokens: flat arrays from which any rows can be padded into a Batch.

Shapes: B rows, T tokens, S source tokens or vectors, F numbers in a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.model import BOUNDARY, UNCOUNTED, Batch
from chainrule.text.ragged import Places, Ragged


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
    targets: Places                                  # a class for each; UNCOUNTED: not known
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
    targets: Ragged                                  # of each word: its tag; UNCOUNTED: not known
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
        targets = np.full(tokens.shape, UNCOUNTED, np.int64)
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
    return int((targets != UNCOUNTED).sum())


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.int64))

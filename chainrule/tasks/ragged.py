"""Ragged arrays: rows of different lengths, end to end in one flat array; padding, truncation, texts as tokens.

Shapes: N entries in all, B rows, F numbers in an entry that is a vector.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.tasks.task import Truncate
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

Ids: TypeAlias = NDArray[np.int64]

AT_ONCE = 1 << 14        # texts encoded at a time, which bounds memory and changes no token


@dataclass(frozen=True)
class Ragged:
    flat: NDArray[Any]                     # (N,) or (N, F)
    ends: Ids                              # where each row ends

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def begins(self) -> Ids:
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])[: len(self.ends)]

    @cached_property
    def lengths(self) -> Ids:
        return self.ends - self.begins

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.flat[self.begins[row] : self.ends[row]]

    def take(self, rows: Ids) -> "Ragged":
        """Some of the rows, in the order given."""
        lengths = self.lengths[rows]
        return Ragged(self.flat[np.repeat(self.begins[rows], lengths) + positions(lengths)], np.cumsum(lengths))

    def padded(self, rows: Ids, width: int, fill: float = 0) -> NDArray[Any]:
        """(B, width) or (B, width, F): the rows, padded on the right."""
        lengths, column = self.lengths[rows], np.arange(width)
        result = np.full((len(rows), width, *self.flat.shape[1:]), fill, self.flat.dtype)
        result[column < lengths[:, None]] = self.take(rows).flat
        return result

    def truncated(self, sizes: Ids, ends: bool) -> "Ragged":
        """The first entries of each row, as many as `sizes` says; or as many of its two ends together."""
        tail = np.minimum(sizes // 2 if ends else 0, sizes)
        place = positions(self.lengths)
        first, last = (np.repeat(edge, self.lengths) for edge in (sizes - tail, self.lengths - tail))
        return Ragged(self.flat[(place < first) | (place >= last)], np.cumsum(np.minimum(sizes, self.lengths)))


def positions(lengths: Ids) -> Ids:
    """0 1 2 … for each length, end to end."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)


def ragged(rows: Iterable[NDArray[Any]], dtype: Any = np.int32) -> Ragged:
    parts = [np.asarray(row, dtype) for row in rows]
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
    return Ragged(np.concatenate(parts) if parts else np.empty(0, dtype), ends)


def constant_rows(entry: int, rows: int) -> Ragged:
    """Rows that all hold the same one entry."""
    return Ragged(np.full(rows, entry, np.int32), np.arange(1, rows + 1))


def concatenate_rows(parts: Sequence[Ragged]) -> Ragged:
    """Each row is the rows of all parts, end to end."""
    lengths = np.sum([part.lengths for part in parts], axis=0)
    ends = np.cumsum(lengths)
    flat = np.empty((int(ends[-1]) if len(ends) else 0, *parts[0].flat.shape[1:]), parts[0].flat.dtype)
    begins = ends - lengths
    for part in parts:
        flat[np.repeat(begins, part.lengths) + positions(part.lengths)] = part.flat
        begins = begins + part.lengths
    return Ragged(flat, ends)


def encode_texts(tokenizer: Tokenizer, texts: Iterable[str]) -> Ragged:
    """The tokens of each text. Where lines are texts of their own, what came as one text stays one line."""
    texts = (" ".join(text.split("\n")) if tokenizer.lines else text for text in texts)
    parts = []
    while some := list(islice(texts, AT_ONCE)):
        parts.append(ragged(tokenizer.encode_many(some)))
    ends = [part.ends for part in parts]
    before = np.cumsum([0, *(end[-1] for end in ends)])
    flat = np.concatenate([np.empty(0, np.int32), *(part.flat for part in parts)])
    return Ragged(flat, np.concatenate([np.empty(0, np.int64), *(end + begin for end, begin in zip(ends, before))]))


def special_id(tokenizer: Tokenizer, name: str) -> int:
    """The id of a special token."""
    id = tokenizer.id(name)
    if id is None:
        raise ValueError(f"the tokenizer has no {name}; add it by with_special")
    return id


def to_tensor(array: NDArray[Any]) -> Tensor:
    """Vectors as float32, all else as int64."""
    return torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.int64))


# Truncation

KEPT = {"true": "the beginning is", "ends": "both ends are"}


def truncate_texts(
    texts: list[Ragged], limit: int | None, special: int, truncate: Truncate, places: Sequence[Place]
) -> tuple[list[Ragged], tuple[str, ...]]:
    """The texts of each row, cut so that with `special` more tokens they are within `limit`; and what was cut."""
    total = np.sum([text.lengths for text in texts], axis=0)
    if limit is None or not len(total) or total.max() + special <= limit:
        return texts, ()
    if truncate == "false":
        worst = int(total.argmax())
        raise UserError(
            f"{places[worst]} has {total[worst] + special} tokens, and the model holds {limit}. "
            "Take text.truncate=true to keep the beginning of long texts, or text.truncate=ends to keep both ends."
        )
    most = max(limit - special, 0)
    long, lost = int((total > most).sum()), float(np.maximum(total - most, 0).sum() / total.sum())
    note = f"{long:,} of {len(total):,} texts are longer than {limit} tokens: {KEPT[truncate]} kept, {lost:.1%} is lost"
    sizes = _shares([text.lengths for text in texts], most)
    return [text.truncated(size, truncate == "ends") for text, size in zip(texts, sizes)], (note,)


def _shares(lengths: list[Ids], most: int) -> list[Ids]:
    """How much of each text stays: of two, the longer one is cut first."""
    if len(lengths) == 1:
        return [np.minimum(lengths[0], most)]
    first, second = lengths
    kept = np.minimum(second, np.maximum(most // 2, most - first))
    return [np.minimum(first, most - kept), kept]

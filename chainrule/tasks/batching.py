"""Batches of examples: ragged arrays, truncation, padding, and bucketing by length in a new random order each epoch.

Lengths are rounded up to a few widths, so that shapes repeat and little is padding. Examples of one width are shuffled
among themselves, then the batches: a function of seed and step. Where the batches are cut depends on the widths alone,
so all epochs have as many steps.

Shapes: N entries in all, B rows, T tokens, S source, F numbers in an entry that is a vector.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from chainrule.errors import UserError
from chainrule.model import BOUNDARY, IGNORE, Batch
from chainrule.tasks.task import Truncate
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from chainrule.tasks.example_task import Encoded


# Ragged arrays: rows of different lengths, end to end in one flat array

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


class RowsWithTargets:
    """Encoded rows that have a target each, or one at each place; of frames, `tokens` are their vectors."""

    rows: Ragged
    targets: Any                                     # Ids, one for each row; or a Ragged; IGNORE: not known

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> NDArray[Any]:
        return self.rows.flat

    @property
    def sizes(self) -> tuple[Ids, ...]:
        return (self.rows.lengths,)

    @cached_property
    def target_count(self) -> int:
        every = self.targets.flat if isinstance(self.targets, Ragged) else self.targets
        return int((every != IGNORE).sum())


class TargetTexts:
    """Encoded texts that a decoder learns to write, whatever they are about."""

    targets: Ragged                                  # tokens without boundaries

    @property
    def tokens(self) -> NDArray[Any]:
        return self.targets.flat

    @property
    def target_count(self) -> int:
        return len(self.targets.flat) + len(self.targets)          # the end of each, too

    def teacher_forced(self, rows: Ids, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Teacher forcing: the tokens are 0 y1 … yn, the targets y1 … yn 0; and their lengths."""
        both = np.full((len(rows), width + 1), BOUNDARY, np.int64)
        both[:, 1:] = self.targets.padded(rows, width, BOUNDARY)
        read = torch.from_numpy(both)
        return read[:, :-1], read[:, 1:], to_tensor(self.targets.lengths[rows] + 1)


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
        raise UserError(f"the tokenizer has no special token {name}, which this task needs. Its tokenizer.json is "
                        "damaged: restore it, or train again with --overwrite.")
    return id


def to_tensor(array: NDArray[Any]) -> Tensor:
    """Vectors as float32, all else as int64."""
    return torch.from_numpy(array if array.dtype == np.float32 else array.astype(np.int64))


# Truncation

KEPT = {"true": "the beginning is", "ends": "both ends are"}


def truncate_texts(
    texts: list[Ragged], limit: int | None, special: int, truncate: Truncate, places: Sequence[Place],
    unit: str = "tokens",
) -> tuple[list[Ragged], tuple[str, ...]]:
    """The texts of each row, cut so that with `special` more tokens they are within `limit`; and what was cut."""
    total = np.sum([text.lengths for text in texts], axis=0)
    if limit is None or not len(total) or total.max() + special <= limit:
        return texts, ()
    if truncate == "false":
        worst = int(total.argmax())
        raise UserError(
            f"{places[worst]} has {total[worst] + special} {unit}, and the model holds {limit}. "
            "Take text.truncate=true to keep the beginning of long texts, or text.truncate=ends to keep both ends."
        )
    most = max(limit - special, 0)
    long, lost = int((total > most).sum()), float(np.maximum(total - most, 0).sum() / total.sum())
    note = f"{long:,} of {len(total):,} texts are longer than {limit} {unit}: {KEPT[truncate]} kept, {lost:.1%} is lost"
    sizes = _shares([text.lengths for text in texts], most)
    return [text.truncated(size, truncate == "ends") for text, size in zip(texts, sizes)], (note,)


def _shares(lengths: list[Ids], most: int) -> list[Ids]:
    """How much of each text stays: of two, the longer one is cut first."""
    if len(lengths) == 1:
        return [np.minimum(lengths[0], most)]
    first, second = lengths
    kept = np.minimum(second, np.maximum(most // 2, most - first))
    return [np.minimum(first, most - kept), kept]


GROWTH = 1.1         # how much wider a bucket is than the one before: about half of that is padding


class Buckets:
    def __init__(
        self, examples: "Encoded", *, seed: int, tokens: int | None = None, rows: int | None = None, multiple: int = 8
    ):
        """At most `rows` examples a step, of at most `tokens` tokens: rows times the wider of source and text."""
        if not len(examples):
            raise UserError("there are no examples to train on.")
        if tokens is None and rows is None:
            raise ValueError("say how large a batch may be: by tokens, by rows, or by both")
        self.examples, self.seed = examples, seed
        self.widths = tuple(bucket_widths(sizes, multiple) for sizes in examples.sizes)
        self._sorted = np.lexsort(self.widths[::-1])                       # by the first width, then by the second
        wide = np.max(self.widths, axis=0)[self._sorted]
        self.cuts = _cuts(wide, tokens or int(wide.max()) * (rows or len(examples)), rows or len(examples))
        self.steps = len(self.cuts) - 1
        self.epoch = float(self.steps)                                     # steps in which each example is visited once
        self._epoch, self._order = -1, (self._sorted, np.arange(self.steps))
        self.padded: Ids | None = None                                     # shapes to which batches are padded

    @property
    def shapes(self) -> Ids:
        """(steps, 1 + widths): the rows and widths of the batches of an epoch; they are the same in every epoch."""
        widths = [np.maximum.reduceat(each[self._sorted], self.cuts[:-1]) for each in self.widths]
        return np.stack([np.diff(self.cuts), *widths], 1)

    def pad_to(self, shapes: Ids | None) -> None:
        """From here on `at` pads the batches of an epoch to these shapes, or no longer. What is added does not count in
        the loss."""
        self.padded = shapes

    @property
    def rows(self) -> int:
        """Rows of the largest batch."""
        return int(np.diff(self.cuts).max())

    @property
    def length(self) -> int:
        """Tokens of the longest example, or of the longest source."""
        return int(np.max(self.examples.sizes))

    @property
    def targets(self) -> int:
        """Targets of a batch, on average."""
        return max(1, round(self.examples.target_count / self.epoch))

    def at(self, step: int) -> Batch:
        ids = self.ids(step)
        if self.padded is None:
            return self._batch(ids)
        rows, *widths = self.padded[self._place(step)].tolist()
        return pad_rows(self.examples.batch(ids, widths), rows)

    def ids(self, step: int) -> Ids:
        """(B,) which examples the rows of a step are."""
        order, _ = self._shuffled(step // self.steps)
        return self._cut(order, self._place(step))

    def _place(self, step: int) -> int:
        """Which of the batches of its epoch a step has."""
        epoch, place = divmod(step, self.steps)
        return int(self._shuffled(epoch)[1][place])

    def goes_on(self, step: int) -> bool:
        """Whether each row continues where the step before ended."""
        return False

    def every(self) -> Iterator[tuple[Ids, Batch]]:
        """Each example once, for evaluation: which they are, and the batch."""
        for place in range(self.steps):
            ids = self._cut(self._sorted, place)
            yield ids, self._batch(ids)

    def _cut(self, order: Ids, place: int) -> Ids:
        return order[self.cuts[place] : self.cuts[place + 1]]

    def _batch(self, ids: Ids) -> Batch:
        return self.examples.batch(ids, [int(widths[ids].max()) for widths in self.widths])

    def _shuffled(self, epoch: int) -> tuple[Ids, Ids]:
        """The examples of an epoch, sorted by width and otherwise random; and the order of its batches."""
        if epoch != self._epoch:
            random = np.random.default_rng((self.seed, epoch))
            shuffled = random.permutation(len(self.examples))
            order = shuffled[np.lexsort([widths[shuffled] for widths in self.widths[::-1]])]
            self._epoch, self._order = epoch, (order, random.permutation(self.steps))
        return self._order


BYTES = 24           # bytes of words are padded to multiples of this where batches are padded to given shapes


def pad_rows(batch: Batch, rows: int) -> Batch:
    """As many rows as that: the last one is repeated, and its copies have no targets. Words of bytes get longer too."""
    padded, given = batch, len(batch.tokens)
    if rows > given:
        here = torch.arange(rows).clamp(max=given - 1)
        padded = batch.map(lambda tensor: tensor[here])
        padded.targets[given:] = IGNORE
    if padded.source is not None and padded.source.dtype == torch.uint8 and padded.source.dim() == 3:
        padded = replace(padded, source=pad(padded.source, (0, -padded.source.shape[2] % BYTES)))
    return padded


def bucket_widths(sizes: Ids, multiple: int) -> Ids:
    """Sizes rounded up to a few widths: multiples, then ever wider ones; none is wider than the longest."""
    longest = int(sizes.max())
    widths = [multiple]
    while widths[-1] < longest:
        grown = -(-int(widths[-1] * GROWTH) // multiple) * multiple
        widths.append(max(widths[-1] + multiple, grown))
    edges = np.array(widths, np.int64)
    return np.minimum(edges[np.searchsorted(edges, sizes)], longest)


def _cuts(widths: Ids, tokens: int, most: int) -> Ids:
    """Where to cut a row of widths so that rows times the widest stay within `tokens`; a single wider one excepted."""
    cuts = [0]
    while cuts[-1] < len(widths):
        begin = cuts[-1]
        ahead = np.maximum.accumulate(widths[begin : begin + min(most, max(1, tokens // int(widths[begin])))])
        fitting = np.searchsorted(ahead * np.arange(1, len(ahead) + 1), tokens, "right")
        cuts.append(begin + max(int(fitting), 1))
    return np.array(cuts, np.int64)

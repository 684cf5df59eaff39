"""Corruption of rows of tokens, which a model learns to undo: masked tokens, spans cut out, and BART's noise.

Masked (BERT, Devlin et al. 2019): some tokens are masked, and each is a target where it stood.
Spans (T5, Raffel et al. 2020): spans are replaced by a sentinel each; the target is each sentinel and its span.
Noised (BART, Lewis et al. 2020): tokens masked, deleted or infilled, sentences permuted; the target is the whole text.

What is done is a function of the rows, the seed and the step.
Shapes: B rows, T tokens, N tokens masked in a row, K spans.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.model import BOUNDARY, IGNORE, Batch
from chainrule.text.batches import InOrder, Streams, Windows

Rows = NDArray[np.int64]
Noise: TypeAlias = Literal["permute", "rotate", "infill", "mask", "delete"]


class Corrupted:
    """Rows of `order`, each with something taken out."""

    order: Any

    @property
    def epoch(self) -> float:
        return float(self.order.epoch)

    @property
    def rows(self) -> int:
        return int(self.order.rows)

    @property
    def length(self) -> int:
        return int(self.order.length)

    def goes_on(self, step: int) -> bool:
        return False


@dataclass(frozen=True)
class Masked(Corrupted):
    """Rows of `order` with masked tokens, which are the targets; all other targets are IGNORE."""

    order: Windows | Streams | InOrder
    mask: int                              # the token that masks another
    ordinary: Rows                         # tokens that may stand there at random instead
    seed: int
    share: float = 0.15                    # of tokens, that are targets
    masked: float = 0.8                    # of those, replaced by the mask
    changed: float = 0.1                   # of those, replaced by a random token; the rest stay as they are

    @property
    def targets(self) -> int:
        return self.rows * max(1, round(self.share * self.length))

    def at(self, step: int) -> Batch:
        tokens = self.order.at(step).tokens.numpy()
        random = np.random.default_rng((self.seed, step))
        chosen = choose(tokens != BOUNDARY, self.share, random)
        fate = random.random(tokens.shape, np.float32)
        read = np.where(chosen & (fate < self.masked), self.mask, tokens)
        changed = chosen & (fate >= self.masked) & (fate < self.masked + self.changed)
        read[changed] = random.choice(self.ordinary, int(changed.sum()))
        return Batch(torch.from_numpy(read), torch.from_numpy(np.where(chosen, tokens, IGNORE)))


def choose(eligible: NDArray[np.bool_], share: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """(B, T): True for a share of the eligible places of each row, one at least if there is any."""
    lots = np.where(eligible, random.random(eligible.shape, np.float32), np.float32(2))
    eligibles = eligible.sum(1)
    counts = np.minimum(np.maximum(np.round(share * eligibles).astype(np.int64), 1), eligibles)
    bars = np.take_along_axis(np.sort(lots, 1), np.maximum(counts - 1, 0)[:, None], 1)     # the last lot that is drawn
    return (lots <= bars) & eligible


@dataclass(frozen=True)
class Spans(Corrupted):
    """Rows of `order` as sources with spans cut out, which are the text to predict."""

    order: Windows | Streams | InOrder
    sentinels: Rows                        # tokens, one for each span of a row; more spans than these are not cut out
    seed: int
    share: float = 0.15                    # of tokens, that are cut out
    mean: float = 3.0                      # tokens in a span, on average
    multiple: int = 8                      # widths are rounded up to this

    @property
    def targets(self) -> int:
        return self.rows * (sum(span_count(self.length, self.share, self.mean)) + 1)

    def at(self, step: int) -> Batch:
        tokens = self.order.at(step).tokens.numpy()
        random = np.random.default_rng((self.seed, step))
        cut = spans(len(tokens), tokens.shape[1], self.share, self.mean, random) & (tokens != BOUNDARY)
        first, number = _begun(cut)
        cut &= number < len(self.sentinels)
        first &= cut
        marked = np.where(first, self.sentinels[np.minimum(number, len(self.sentinels) - 1)], tokens)
        source, source_lengths = _flush_left(marked, ~cut | first, self.multiple)
        doubled = np.stack([marked, tokens], 2).reshape(len(tokens), -1)                   # a sentinel before its span
        target, lengths = _flush_left(doubled, np.stack([first, cut], 2).reshape(len(tokens), -1), self.multiple)
        return _text_from_source(target, lengths, source, source_lengths)


def sentinel_names(count: int) -> tuple[str, ...]:
    return tuple(f"<|span{number}|>" for number in range(count))


def span_count(length: int, share: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """Tokens to cut out of a row, and in how many spans."""
    cut = min(max(round(length * share), 1), length - 1)
    return cut, min(max(round(cut / mean), 1), cut, length - cut)


def spans(rows: int, length: int, share: float, mean: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """(B, T): True in the spans. Every row has as many tokens cut out, in as many spans, none at its beginning."""
    cut, count = span_count(length, share, mean)
    lengths = np.stack([_parts(rows, length - cut, count, random), _parts(rows, cut, count, random)], 2)   # (B, K, 2)
    inside = np.tile([False, True], rows * count)
    return np.repeat(inside, lengths.ravel()).reshape(rows, length)


def _parts(rows: int, total: int, count: int, random: np.random.Generator) -> Rows:
    """(B, K) positive numbers that add up to `total`, every way equally likely."""
    lots = random.random((rows, total - 1), np.float32)
    drawn = np.argpartition(lots, count - 2, 1)[:, : count - 1] if count > 1 else np.empty((rows, 0), int)
    cuts = np.sort(drawn + 1, 1)
    edges = np.concatenate([np.zeros((rows, 1), int), cuts, np.full((rows, 1), total)], 1)
    return np.diff(edges, axis=1)


def _begun(cut: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], Rows]:
    """Where a span begins, and the number of the span that began last."""
    before = np.concatenate([np.zeros((len(cut), 1), bool), cut[:, :-1]], 1)
    first = cut & ~before
    return first, np.maximum(np.cumsum(first, 1) - 1, 0)


def _flush_left(values: Rows, kept: NDArray[np.bool_], multiple: int) -> tuple[Rows, Rows]:
    """The kept values of each row and the boundary, then padding up to a common width; and how many are not padding."""
    lengths = kept.sum(1) + 1
    width = -(-int(lengths.max()) // multiple) * multiple
    result = np.full((len(values), width), BOUNDARY, np.int64)
    result[np.arange(width) < lengths[:, None] - 1] = values[kept]
    return result, lengths


# BART's noise, on one row at a time: its length may change


@dataclass(frozen=True)
class Noised(Corrupted):
    """Rows of `order` as noisy sources, from which the whole row is to be restored."""

    order: Windows | Streams | InOrder
    noise: tuple[Noise, ...]
    mask: int                              # the token that stands for others
    end: int                               # stands for a boundary within a row, since a boundary would end the target
    ends_sentence: NDArray[np.bool_]       # (V,) tokens after which a sentence is over
    seed: int
    share: float = 0.3                     # of tokens, that are infilled, masked or deleted
    mean: float = 3.0                      # tokens in an infilled span, on average
    multiple: int = 8                      # widths are rounded up to this

    @property
    def targets(self) -> int:
        return self.rows * (self.length + 1)

    def at(self, step: int) -> Batch:
        tokens = self.order.at(step).tokens.numpy()
        rows = np.where(tokens == BOUNDARY, self.end, tokens)
        random = np.random.default_rng((self.seed, step))
        source, source_lengths = _pad_rows([self.corrupted(row, random) for row in rows], self.multiple)
        target, lengths = _flush_left(rows, np.ones(rows.shape, bool), self.multiple)
        return _text_from_source(target, lengths, source, source_lengths)

    def corrupted(self, row: Rows, random: np.random.Generator) -> Rows:
        """The row with all of the noise, in the order of NOISES."""
        for name, add in NOISES.items():
            row = add(self, row, random) if name in self.noise else row
        return row

    def permute(self, row: Rows, random: np.random.Generator) -> Rows:
        """Its sentences in random order."""
        sentences = np.split(row, np.flatnonzero(self.ends_sentence[row[:-1]]) + 1)
        return np.concatenate([sentences[place] for place in random.permutation(len(sentences))])

    def rotate(self, row: Rows, random: np.random.Generator) -> Rows:
        """It begins with a random token, and what was before that comes at the end."""
        return np.roll(row, -int(random.integers(len(row))))

    def infill(self, row: Rows, random: np.random.Generator) -> Rows:
        """Spans of random lengths, 0 among them, are replaced by one mask each."""
        lengths = infilled_lengths(round(self.share * len(row)), self.mean, random)
        kept = len(row) - int(lengths.sum())
        sizes = np.ones(kept + len(lengths), np.int64)             # of kept tokens and spans, in random order
        spans = np.sort(random.permutation(len(sizes))[: len(lengths)])
        sizes[spans] = lengths
        source: Rows = np.append(row, self.mask)[np.cumsum(sizes) - sizes]
        source[spans] = self.mask
        return source

    def mask_tokens(self, row: Rows, random: np.random.Generator) -> Rows:
        return np.where(self._chosen(row, random), self.mask, row)

    def delete(self, row: Rows, random: np.random.Generator) -> Rows:
        """Without some tokens, and with no sign of where they were."""
        return row[~self._chosen(row, random)]

    def _chosen(self, row: Rows, random: np.random.Generator) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = choose((row != self.mask)[None], self.share, random)[0]
        return chosen


NOISES: Mapping[Noise, Callable[[Noised, Rows, np.random.Generator], Rows]] = {
    "permute": Noised.permute, "rotate": Noised.rotate, "infill": Noised.infill, "mask": Noised.mask_tokens,
    "delete": Noised.delete,
}


def infilled_lengths(total: int, mean: float, random: np.random.Generator) -> Rows:
    """(K,) lengths of spans, each Poisson distributed, until they have `total` tokens; the last is cut to fit.

    There are at most `total` spans, so that the source is never longer than the text.
    """
    lengths = random.poisson(mean, total)
    so_far = np.minimum(np.cumsum(lengths), total)
    count = min(int(np.searchsorted(so_far, total)) + 1, total)
    return np.diff(so_far[:count], prepend=0)


def _pad_rows(rows: list[Rows], multiple: int) -> tuple[Rows, Rows]:
    """Rows of different lengths as those of `_flush_left`."""
    width = max(map(len, rows))
    kept = np.arange(width) < np.array([len(row) for row in rows])[:, None]
    values = np.zeros(kept.shape, np.int64)
    values[kept] = np.concatenate(rows)
    return _flush_left(values, kept, multiple)


def _text_from_source(target: Rows, lengths: Rows, source: Rows, source_lengths: Rows) -> Batch:
    """Teacher forcing: the decoder reads the boundary and the target, all but its end."""
    read = torch.from_numpy(np.concatenate([np.full((len(target), 1), BOUNDARY), target], 1))
    return Batch(
        read[:, :-1], read[:, 1:], torch.from_numpy(lengths), source=torch.from_numpy(source),
        source_lengths=torch.from_numpy(source_lengths),
    )

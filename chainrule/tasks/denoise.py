"""A text to be restored: an ordinary corpus, whose tokenizer has the tokens that stand for what was taken away."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.model import BOUNDARY, IGNORE, Batch
from chainrule.recipe import Text
from chainrule.tasks.task import Task
from chainrule.text.batches import InOrder, Streams, Windows
from chainrule.text.corpus import Corpus, prepare
from chainrule.text.tokenizers.tokenizer import Tokenizer

# Texts made incomplete, for a model to restore: pure functions of the rows, the seed and the step.
#
# mask (BERT, Devlin et al. 2019): some tokens are hidden, and each is to be said where it stood.
# span (T5, Raffel et al. 2020): whole spans give way to a sentinel each; the target is each sentinel and what it hides.
# Boundaries stay where they are.
#
# Shapes: B rows, T tokens, N tokens hidden in a row, K spans.

MASK = "<|mask|>"
Rows = NDArray[np.int64]


def sentinel_names(count: int) -> tuple[str, ...]:
    return tuple(f"<|span{number}|>" for number in range(count))


@dataclass(frozen=True)
class Masked:
    """Rows of `order` with hidden tokens; the targets are those, and count for nothing elsewhere."""

    order: Windows | Streams | InOrder
    mask: int                              # the token that hides another
    ordinary: Rows                         # tokens that may stand there by chance instead
    seed: int
    share: float = 0.15                    # of tokens, that are to be said
    hidden: float = 0.8                    # of those, hidden by the mask
    changed: float = 0.1                   # of those, changed to any token; the rest stay as they are

    @property
    def epoch(self) -> float:
        return self.order.epoch

    def at(self, step: int) -> Batch:
        tokens = self.order.at(step).tokens.numpy()
        chance = np.random.default_rng((self.seed, step))
        chosen = choose(tokens != BOUNDARY, self.share, chance)
        fate = chance.random(tokens.shape, np.float32)
        read = np.where(chosen & (fate < self.hidden), self.mask, tokens)
        changed = chosen & (fate >= self.hidden) & (fate < self.hidden + self.changed)
        read[changed] = chance.choice(self.ordinary, int(changed.sum()))
        return Batch(torch.from_numpy(read), torch.from_numpy(np.where(chosen, tokens, IGNORE)))


def choose(eligible: NDArray[np.bool_], share: float, chance: np.random.Generator) -> NDArray[np.bool_]:
    """(B, T): True for a share of the eligible places of each row, one at least if there is any."""
    lots = np.where(eligible, chance.random(eligible.shape, np.float32), np.float32(2))
    eligibles = eligible.sum(1)
    counts = np.minimum(np.maximum(np.round(share * eligibles).astype(np.int64), 1), eligibles)
    bars = np.take_along_axis(np.sort(lots, 1), np.maximum(counts - 1, 0)[:, None], 1)     # the last lot that is drawn
    return (lots <= bars) & eligible


@dataclass(frozen=True)
class Spans:
    """Rows of `order` with spans cut out of the source, which are the text to be said."""

    order: Windows | Streams | InOrder
    sentinels: Rows                        # tokens, one for each span of a row; more spans than these are not cut out
    seed: int
    share: float = 0.15                    # of tokens, that are cut out
    length: float = 3.0                    # tokens in a span, on average
    multiple: int = 8                      # widths are rounded up to this

    @property
    def epoch(self) -> float:
        return self.order.epoch

    def at(self, step: int) -> Batch:
        tokens = self.order.at(step).tokens.numpy()
        chance = np.random.default_rng((self.seed, step))
        cut = spans(len(tokens), tokens.shape[1], self.share, self.length, chance) & (tokens != BOUNDARY)
        first, number = _begun(cut)
        cut &= number < len(self.sentinels)
        first &= cut
        marked = np.where(first, self.sentinels[np.minimum(number, len(self.sentinels) - 1)], tokens)
        source, source_lengths = _flush_left(marked, ~cut | first, self.multiple)
        doubled = np.stack([marked, tokens], 2).reshape(len(tokens), -1)                   # a sentinel before its span
        target, lengths = _flush_left(doubled, np.stack([first, cut], 2).reshape(len(tokens), -1), self.multiple)
        read = torch.from_numpy(np.concatenate([np.full((len(tokens), 1), BOUNDARY), target], 1))
        whole = torch.from_numpy(source), torch.from_numpy(source_lengths)
        return Batch(read[:, :-1], read[:, 1:], torch.from_numpy(lengths), source=whole[0], source_lengths=whole[1])


def span_count(length: int, share: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """Tokens to cut out of a row, and in how many spans."""
    cut = min(max(round(length * share), 1), length - 1)
    return cut, min(max(round(cut / mean), 1), cut, length - cut)


def spans(rows: int, length: int, share: float, mean: float, chance: np.random.Generator) -> NDArray[np.bool_]:
    """(B, T): True in the spans. Every row has as many tokens cut out, in as many spans, none at its beginning."""
    cut, count = span_count(length, share, mean)
    lengths = np.stack([_parts(rows, length - cut, count, chance), _parts(rows, cut, count, chance)], 2)   # (B, K, 2)
    inside = np.tile([False, True], rows * count)
    return np.repeat(inside, lengths.ravel()).reshape(rows, length)


def _parts(rows: int, total: int, count: int, chance: np.random.Generator) -> Rows:
    """(B, K) positive numbers that add up to `total`, every way alike."""
    lots = chance.random((rows, total - 1), np.float32)
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
    """The kept values of each row and the boundary, then boundaries up to a common width; and how many are real."""
    lengths = kept.sum(1) + 1
    width = -(-int(lengths.max()) // multiple) * multiple
    result = np.full((len(values), width), BOUNDARY, np.int64)
    result[np.arange(width) < lengths[:, None] - 1] = values[kept]
    return result, lengths


class Mask(Task):
    name, running_text = "mask", False


class Span(Task):
    name, running_text = "span", False


@dataclass(frozen=True)
class CorruptedCorpus(Corpus):
    task: str = "mask"
    sentinels: int = 0              # tokens that stand for spans
    ordinary: int = 0               # tokens of the text itself, the boundary included
    length: int = 0                 # tokens in a row

    def corrupted(self, order: Windows | Streams | InOrder, seed: int) -> Masked | Spans:
        """The rows of an order, each made incomplete."""
        if self.task == "mask":
            return Masked(order, self._id(MASK), np.arange(1, self.ordinary), seed)
        names = sentinel_names(self.sentinels)
        return Spans(order, np.array([self._id(name) for name in names]), seed)

    def _id(self, name: str) -> int:
        id = self.tokenizer.id(name)
        assert id is not None, f"{name} was added when the corpus was made"
        return id


def prepare_corrupted(
    task: str,
    texts: Sequence[str],
    settings: Text,
    length: int,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    tokenizer: Tokenizer | None = None,
) -> CorruptedCorpus:
    """A corpus for rows of `length` tokens. `tokenizer`: one that comes from elsewhere; it is given what it lacks."""
    corpus = prepare(texts, settings, valid=valid, test=test, tokenizer=tokenizer)
    sentinels = span_count(length)[1] if task == "span" else 0
    names = (MASK,) if task == "mask" else sentinel_names(sentinels)
    known = [name for name in names if corpus.tokenizer.id(name) is not None]
    grown = corpus.tokenizer.with_special([name for name in names if name not in known])
    ordinary = len(corpus.tokenizer) - len(known)
    return CorruptedCorpus(corpus.splits, grown, corpus.notes, task, sentinels, ordinary, length)

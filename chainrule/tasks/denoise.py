"""Denoising, the pretraining of encoders: restore what was taken out of a text (`--task mask`, `--task span`).

mask (BERT, Devlin et al. 2019): some tokens are masked, and each is a target where it stood.
span (T5, Raffel et al. 2020): spans are replaced by a sentinel each; the target is each sentinel and its span.

What is taken out is a function of the rows, the seed and the step. Boundaries stay where they are.
Shapes: B rows, T tokens, N tokens masked in a row, K spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.model import BOUNDARY, IGNORE, Batch, Model
from chainrule.recipe import Gradient, Recipe
from chainrule.tasks.batching import special_id
from chainrule.tasks.lm import order_text
from chainrule.tasks.task import Task
from chainrule.text.batches import InOrder, Streams, Windows
from chainrule.text.corpus import Corpus, prepare
from chainrule.text.tokenizers.tokenizer import Tokenizer

MASK = "<|mask|>"
EVALUATED = 1 << 13      # tokens of a batch in evaluation
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class CorruptedCorpus(Corpus):
    """Running text, whose tokenizer has the tokens that stand for what is taken out."""

    length: int = 0                 # tokens in a row
    ordinary: int = 0               # tokens of the text itself, the boundary included
    special: tuple[int, ...] = ()   # the mask, or the sentinels


class Denoising(Task):
    running_text = False

    def special_tokens(self, length: int) -> tuple[str, ...]:
        """Tokens to add to the tokenizer, for rows of `length` tokens."""
        raise NotImplementedError

    def corrupt(self, corpus: CorruptedCorpus, order: Windows | Streams | InOrder, seed: int) -> "Masked | Spans":
        raise NotImplementedError

    def row_length(self, recipe: Recipe) -> int:
        length: int = recipe.train.length or recipe.model.context
        return length

    def prepare(
        self, recipe: Recipe, texts: Sequence[str], valid: Sequence[str] = (), test: Sequence[str] = (),
        tokenizer: Tokenizer | None = None,
    ) -> CorruptedCorpus:
        corpus = prepare(texts, recipe.text, valid=valid, test=test, tokenizer=tokenizer)
        return self.with_special(corpus, self.row_length(recipe))

    def with_special(self, corpus: Corpus, length: int) -> CorruptedCorpus:
        """The corpus for rows of `length` tokens, with the tokens that its tokenizer lacks."""
        names = self.special_tokens(length)
        known = [name for name in names if corpus.tokenizer.id(name) is not None]
        grown = corpus.tokenizer.with_special([name for name in names if name not in known])
        special = tuple(special_id(grown, name) for name in names)
        ordinary = len(corpus.tokenizer) - len(known)
        return CorruptedCorpus(corpus.splits, grown, corpus.notes, length, ordinary, special)

    def order(self, model: Model, corpus: Corpus, settings: Gradient) -> "Masked | Spans":
        corpus = cast(CorruptedCorpus, corpus)
        settings, context = replace(settings, length=corpus.length), getattr(model, "context", None)
        rows = order_text(corpus.splits["train"], settings, context)
        return self.corrupt(corpus, rows, settings.seed)

    def validation(self, model: Model, corpus: Corpus) -> "Masked | Spans":
        """The same is taken out in every evaluation."""
        corpus = cast(CorruptedCorpus, corpus)
        rows = InOrder(corpus.splits["valid"].tokens, max(1, EVALUATED // corpus.length), corpus.length)
        return self.corrupt(corpus, rows, seed=0)


class MaskedTokens(Denoising):
    name = "mask"
    next_commands: ClassVar[Sequence[str]] = ("train EXAMPLES --task classify --from {run}",)

    def special_tokens(self, length: int) -> tuple[str, ...]:
        return (MASK,)

    def corrupt(self, corpus: CorruptedCorpus, order: Windows | Streams | InOrder, seed: int) -> "Masked":
        return Masked(order, corpus.special[0], np.arange(1, corpus.ordinary), seed)


class SpanCorruption(Denoising):
    name, source = "span", "text"
    next_commands: ClassVar[Sequence[str]] = ("train EXAMPLES --task translate --from {run}",)

    def special_tokens(self, length: int) -> tuple[str, ...]:
        return sentinel_names(span_count(length)[1])

    def row_length(self, recipe: Recipe) -> int:
        length: int = recipe.train.length or recipe.model.context - 1    # the source also ends with a boundary
        return length

    def corrupt(self, corpus: CorruptedCorpus, order: Windows | Streams | InOrder, seed: int) -> "Spans":
        return Spans(order, np.array(corpus.special), seed)


def sentinel_names(count: int) -> tuple[str, ...]:
    return tuple(f"<|span{number}|>" for number in range(count))


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
        read = torch.from_numpy(np.concatenate([np.full((len(tokens), 1), BOUNDARY), target], 1))
        whole = torch.from_numpy(source), torch.from_numpy(source_lengths)
        return Batch(read[:, :-1], read[:, 1:], torch.from_numpy(lengths), source=whole[0], source_lengths=whole[1])


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

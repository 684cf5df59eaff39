"""Bits per byte by position: how much a model gains from more context, and how far it carries.

The held-out text is cut into windows. Each is read from an empty state, so the token at position p is predicted from
the p tokens before it in the window. Positions are put into buckets that double: 1–16, 17–32, 33–64 … A model whose
context ends before the window does is measured up to there. The intervals are by the bootstrap over windows.

Shapes: K windows, T positions, P buckets.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.errors import UserError
from chainrule.inference.evaluate import require_alike, sign, why_no_answer
from chainrule.inference.score import score_windows
from chainrule.inference.statistics import Score, bootstrap, byte_ends
from chainrule.model import LanguageModel
from chainrule.text.corpus import Split
from chainrule.text.tokenizers.tokenizer import Tokenizer

FIRST = 16             # positions of the first bucket
POSITIONS = 1024       # tokens of a window, where no model has a context


@dataclass(frozen=True)
class ByPosition:
    """One model on one text."""

    ends: tuple[int, ...]            # (P,) the last position of each bucket
    scores: tuple[Score, ...]        # (P,)
    unit: str                        # bits_per_byte; bits_per_token where tokens do not give the bytes back
    windows: int
    signature: str

    @property
    def names(self) -> list[str]:
        return [f"{begin}–{end}" for begin, end in zip([1, *(end + 1 for end in self.ends)], self.ends)]

    def as_dict(self) -> dict[str, Any]:
        begins = [1, *(end + 1 for end in self.ends)]
        buckets = [{"from": begin, "to": end, **score.as_dict(self.unit)}
                   for begin, end, score in zip(begins, self.ends, self.scores)]
        return {"by_position": buckets, "windows": self.windows, "signature": self.signature}


def bucket_ends(positions: int) -> tuple[int, ...]:
    """16, 32, 64 … up to the last position, which ends the last bucket."""
    doubling = [FIRST << power for power in range(max(0, positions // FIRST).bit_length())]
    return (*(end for end in doubling if end < positions), positions)


def window_length(models: Sequence[LanguageModel], asked: int | None) -> int:
    """Tokens of a window: as asked for, or the longest context."""
    if asked is not None and asked < 1:
        raise UserError(f"--positions {asked}: ask for 1 or more.")
    return asked or max((model.context for model in models if model.context), default=POSITIONS)


def score_by_position(model: LanguageModel, tokenizer: Tokenizer, split: Split, length: int) -> ByPosition:
    """The model on windows of `length` tokens, up to its own context."""
    count = (len(split.tokens) - 1) // length
    if count < 2:
        raise UserError(f"the text has {max(0, len(split.tokens) - 1)} tokens, and two windows of {length} positions "
                        f"are needed. Give more text, or fewer positions: --positions {FIRST}.")
    starts, reach = np.arange(count) * length, min(length, model.context or length)
    nats = score_windows(model, np.asarray(split.tokens)[starts[:, None] + np.arange(reach + 1)])    # (K, T)
    if not np.isfinite(nats).all():
        raise UserError(f"{why_no_answer(model, 'the model gives a token of this text probability 0')}.")
    sizes = np.ones(nats.shape)                                        # of the targets
    if tokenizer.lossless:
        ends = np.append(0, byte_ends(tokenizer, split.tokens[1:]))
        sizes = np.diff(ends)[starts[:, None] + np.arange(reach)].astype(np.float64)
    buckets = bucket_ends(reach)
    scores = tuple(_score(nats[:, begin:end], sizes[:, begin:end]) for begin, end in zip([0, *buckets], buckets))
    unit = "bits_per_byte" if tokenizer.lossless else "bits_per_token"
    return ByPosition(buckets, scores, unit, count, str(sign(model, tokenizer, split)))


def _score(nats: Any, sizes: Any) -> Score:
    """(K, positions): Σ bits / Σ bytes; the bootstrap draws windows."""
    bits, size = nats.sum(1) / math.log(2), sizes.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return bootstrap(lambda weights: float((weights @ bits) / (weights @ size)), len(bits))


def require_same_positions(scored: Mapping[str, ByPosition]) -> None:
    """A position is a number of tokens, so only models with the same tokenizer share a table."""
    require_alike([one.signature for one in scored.values()], "perplexity")

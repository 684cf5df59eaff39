"""The score of a text: the bits, -log2 p, of each token, the total, bits per byte and perplexity; and of an excerpt."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.inference.evaluate import why_no_number
from chainrule.inference.score import Tokens, stream_bits
from chainrule.inference.statistics import Bits, ScoredSplit
from chainrule.model import LanguageModel
from chainrule.text.tokenizers.tokenizer import Tokenizer

LENGTH = 1200     # characters of an excerpt
PROMPT = 32       # characters of its prompt


@dataclass(frozen=True)
class Excerpt:
    begin: int    # in bytes of the whole text
    text: str

    @classmethod
    def of(cls, whole: str) -> "Excerpt":
        """Begins with the first line that starts in the middle third of the text; without lines, at the first third."""
        third = len(whole) // 3
        line = whole.find("\n", third, 2 * third) + 1
        begin = line or third
        text = whole[begin : begin + LENGTH]
        return cls(len(whole[:begin].encode()), text)

    @property
    def end(self) -> int:
        return self.begin + len(self.text.encode())

    @property
    def prompt(self) -> str:
        """Its first words, a prompt for samples."""
        head = self.text[:PROMPT]
        return head[: head.rfind(" ") + 1] or head


@dataclass(frozen=True)
class ExcerptBits:
    """The tokens of an excerpt as text, whole characters only, and the bits of each."""

    begin: int                               # in bytes of the whole text
    pieces: Sequence[tuple[str, float]]


def excerpt_bits(excerpt: Excerpt, scored: ScoredSplit, tokenizer: Tokenizer, tokens: Tokens) -> ExcerptBits:
    """The tokens that lie entirely in the excerpt; `tokens`: all that were scored."""
    begins = np.append(0, scored.ends[:-1])
    first = int(np.searchsorted(begins, excerpt.begin))
    last = max(first, int(np.searchsorted(scored.ends, excerpt.end, "right")))
    begin = int(begins[first]) if first < len(begins) else excerpt.end
    return ExcerptBits(begin, pieces_with_bits(tokenizer, tokens[first:last].tolist(), scored.bits[first:last]))


def pieces_with_bits(tokenizer: Tokenizer, tokens: Sequence[int], bits: Bits) -> list[tuple[str, float]]:
    """The text of each token, and its bits; the bits of a token without text are added to those of the next."""
    feed, waiting, shown = tokenizer.stream_decoder().feed, 0.0, list[tuple[str, float]]()
    for token, cost in zip(tokens, bits.tolist(), strict=True):
        text, waiting = feed(token), waiting + cost
        if text:
            shown.append((text, waiting))
            waiting = 0.0
    return shown


MOST_BITS = 1000    # a token, above which a perplexity is more than a float can hold


@dataclass(frozen=True, repr=False)
class TextScore:
    """Iterating gives pairs of a token and its bits; the last token is the end of the text."""

    tokens: tuple[str, ...]         # as they are shown
    bits: tuple[float, ...]
    bytes: int                      # of the text
    lossless: bool                  # whether the tokens give the bytes back
    why: str = ""                   # why a number below is None

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return zip(self.tokens, self.bits)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"<TextScore: {self.total_bits} bits, {len(self)} tokens, {self.bits_per_byte} bits per byte>"

    @property
    def total_bits(self) -> float | None:
        return _finite(sum(self.bits))

    @property
    def bits_per_byte(self) -> float | None:
        return _finite(sum(self.bits) / self.bytes) if self.lossless and self.bytes else None

    @property
    def perplexity(self) -> float | None:
        mean = sum(self.bits) / len(self)
        return _finite(2**mean) if mean < MOST_BITS else None

    @property
    def finite_bits(self) -> list[float | None]:
        """The bits of each token for strict JSON, which has no infinity."""
        return [_finite(bits) for bits in self.bits]

    def as_dict(self) -> dict[str, Any]:
        """The totals as plain values for strict JSON."""
        totals = {"total_bits": self.total_bits, "tokens": len(self), "bytes": self.bytes}
        metrics = {"bits_per_byte": self.bits_per_byte, "perplexity": self.perplexity}
        return {**totals, **metrics, **({"why": self.why} if self.why else {})}


def score_tokens(
    model: LanguageModel, tokenizer: Tokenizer, stream: Tokens, size: int, packed: bool = False
) -> TextScore:
    """The score of every token of a stream but the first, which is a boundary; `size`: bytes of the text.

    `packed`: each document of the stream is scored separately.
    """
    tokens, bits = zip(*stream_bits(model, tokenizer, stream, packed), strict=True)
    why = why_no_number(sum(bits) * math.log(2) / len(bits), tokenizer)
    return TextScore(tokens, bits, size, tokenizer.lossless, why)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None

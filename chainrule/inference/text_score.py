"""The score of a text: the bits, -log2 p, of each token, the total, bits per byte and perplexity; and of an excerpt."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.inference.evaluate import why_no_number
from chainrule.inference.score import Tokens, in_bits, score_pieces, stream_bits
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


PIECE = 1 << 16     # tokens shown or written at a time
MOST_BITS = 1000    # a token, above which a perplexity is more than a float can hold


@dataclass(frozen=True)
class TextTotals:
    """The score of a whole text."""

    bits: float                     # of all tokens, the end of the text included
    tokens: int
    bytes: int                      # of the text
    lossless: bool                  # whether the tokens give the bytes back
    why: str = ""                   # why a number below is None

    @property
    def total_bits(self) -> float | None:
        return _finite(self.bits)

    @property
    def bits_per_byte(self) -> float | None:
        return _finite(self.bits / self.bytes) if self.lossless and self.bytes else None

    @property
    def perplexity(self) -> float | None:
        mean = self.bits / self.tokens
        return _finite(2**mean) if mean < MOST_BITS else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        totals = {"total_bits": self.total_bits, "tokens": self.tokens, "bytes": self.bytes}
        metrics = {"bits_per_byte": self.bits_per_byte, "perplexity": self.perplexity}
        return {**totals, **metrics, **({"why": self.why} if self.why else {})}


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
    def totals(self) -> TextTotals:
        return TextTotals(sum(self.bits), len(self), self.bytes, self.lossless, self.why)

    @property
    def total_bits(self) -> float | None:
        return self.totals.total_bits

    @property
    def bits_per_byte(self) -> float | None:
        return self.totals.bits_per_byte

    @property
    def perplexity(self) -> float | None:
        return self.totals.perplexity

    @property
    def finite_bits(self) -> list[float | None]:
        """The bits of each token for strict JSON, which has no infinity."""
        return finite(self.bits)

    def as_dict(self) -> dict[str, Any]:
        """The totals as plain values for strict JSON."""
        return self.totals.as_dict()


def score_tokens(
    model: LanguageModel, tokenizer: Tokenizer, stream: Tokens, size: int, packed: bool = False
) -> TextScore:
    """The score of every token of a stream but the first, which is a boundary; `size`: bytes of the text.

    `packed`: each document of the stream is scored separately.
    """
    tokens, bits = zip(*stream_bits(model, tokenizer, stream, packed), strict=True)
    why = why_no_number(sum(bits) * math.log(2) / len(bits), tokenizer)
    return TextScore(tokens, bits, size, tokenizer.lossless, why)


class StreamScore:
    """The score of a text of any length, in pieces: `bits` computes them, and only their total is kept."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, stream: Tokens, size: int, packed: bool = False):
        self.model, self.tokenizer, self.stream, self.size, self.packed = model, tokenizer, stream, size, packed
        self.total = 0.0
        self.names: dict[int, str] = {}            # tokens as they are shown

    def shown(self) -> Iterator[list[str]]:
        """Every token but the first as it is shown."""
        for begin in range(1, len(self.stream), PIECE):
            yield self.show(self.stream[begin : begin + PIECE])

    def show(self, tokens: Tokens) -> list[str]:
        ids = tokens.tolist()
        for token in set(ids) - self.names.keys():
            self.names[token] = self.tokenizer.show(token)
        return [self.names[token] for token in ids]

    def bits(self) -> Iterator[list[float]]:
        """The bits of every token but the first."""
        self.total = 0.0
        for piece in score_pieces(self.model, self.stream, self.packed):
            for begin in range(0, len(piece), PIECE):
                bits = in_bits(piece[begin : begin + PIECE]).tolist()
                self.total = sum(bits, self.total)
                yield bits

    @property
    def totals(self) -> TextTotals:
        """Of the bits that were computed."""
        count = len(self.stream) - 1
        why = why_no_number(self.total * math.log(2) / count, self.tokenizer)
        return TextTotals(self.total, count, self.size, self.tokenizer.lossless, why)


def finite(bits: Iterable[float]) -> list[float | None]:
    return [_finite(number) for number in bits]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None

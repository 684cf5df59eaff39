"""An excerpt of held-out text, and the bits of each of its tokens under a model that has read all the text before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chainrule.inference.score import Tokens
from chainrule.inference.statistics import Bits, ScoredSplit
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

"""A piece of held-out text to look at, token by token: what each cost a model that had read all before it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chainrule.text.tokenizer import Tokenizer
from chainrule.use.compare import Bits, Scored
from chainrule.use.score import Tokens

LENGTH = 1200     # bytes
PROMPT = 32       # characters


@dataclass(frozen=True)
class Excerpt:
    begin: int    # in bytes of the whole text
    text: str

    @classmethod
    def of(cls, whole: str) -> "Excerpt":
        """From the first line that begins in the second third; where there are no lines, from there on."""
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
        """Its first words, for samples to go on from."""
        head = self.text[:PROMPT]
        return head[: head.rfind(" ") + 1] or head


@dataclass(frozen=True)
class Strip:
    """The tokens of an excerpt as text, whole characters only, and the bits of each."""

    begin: int                               # in bytes of the whole text
    pieces: Sequence[tuple[str, float]]


def strip(excerpt: Excerpt, scored: Scored, tokenizer: Tokenizer, tokens: Tokens) -> Strip:
    """Those tokens that lie wholly in the excerpt; `tokens`: all that were scored."""
    begins = np.append(0, scored.ends[:-1])
    first = int(np.searchsorted(begins, excerpt.begin))
    last = max(first, int(np.searchsorted(scored.ends, excerpt.end, "right")))
    begin = int(begins[first]) if first < len(begins) else excerpt.end
    return Strip(begin, pieces(tokenizer, tokens[first:last].tolist(), scored.bits[first:last]))


def pieces(tokenizer: Tokenizer, tokens: Sequence[int], bits: Bits) -> list[tuple[str, float]]:
    """What the tokens spell, and their bits; a token without text of its own counts to the next that has some."""
    feed, waiting, shown = tokenizer.pieces().feed, 0.0, list[tuple[str, float]]()
    for token, cost in zip(tokens, bits.tolist(), strict=True):
        text, waiting = feed(token), waiting + cost
        if text:
            shown.append((text, waiting))
            waiting = 0.0
    return shown

"""Tokens that are pieces of one word, found by the text that they make: a word goes on from letter to letter.

Pieces of one character (a byte of an emoji) stay together whatever it is.
"""

from collections.abc import Sequence

from chainrule.model import BOUNDARY
from chainrule.text.tokenizer import Tokenizer
from chainrule.text.units.unit import visible


def words_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[tuple[int, str]]:
    """Words in order: how many tokens each has, and what it looks like."""
    words: list[tuple[int, str]] = []
    pieces, waiting, before = tokenizer.pieces(), 0, ""
    for token in tokens:
        text, waiting = pieces.feed(token), waiting + 1
        if token == BOUNDARY or tokenizer.lines:
            words += [(1, "\ufffd")] * (waiting - 1) + [(1, tokenizer.show(token))]
            waiting, before = 0, ""
        elif text:
            if before[-1:].isalnum() and text[0].isalnum():
                size, shown = words.pop()
                words.append((size + waiting, shown + visible(text)))
            else:
                words.append((waiting, visible(text)))
            waiting, before = 0, text
    return words + [(1, "\ufffd")] * waiting

"""Fill in the blank: a text with blanks (a cloze test, Taylor 1953), and the tokens that a masked model puts there.

A blank is written `___` (three underscores or more) or `[MASK]`. A masked language model fills each with one token. Of
several blanks the one it is most certain of is filled first, and the others are then predicted from the text with it.

Shapes: B texts, T tokens, N blanks, V vocabulary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.inference.evaluate import DIVERGED
from chainrule.inference.forward import eval_mode, on_device
from chainrule.model import BOUNDARY, IGNORE, Batch
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.text.tokenizers.words import UNKNOWN

BLANK = re.compile(r"_{3,}|\[MASK\]")
ALTERNATIVES = 20      # tokens that are reported for a blank
SEARCHED = 1 << 12     # tokens of a vocabulary in which to look for one that begins with a space
NOT_TEXT = "\ufffd"


class MaskedModel(Protocol):
    """A model that predicts a masked token from both sides."""

    context: int | None

    def masked_logits(self, batch: Batch) -> Tensor:
        """(N, V): of the targets that count, row by row."""
        ...


@dataclass(frozen=True)
class Cloze:
    """A text with blanks: the pieces of text before, between and after them."""

    pieces: tuple[str, ...]
    place: Place

    @property
    def blanks(self) -> int:
        return len(self.pieces) - 1

    def filled(self, fills: Sequence[str]) -> str:
        parts = (part for piece, fill in zip(self.pieces, (*fills, "")) for part in (piece, fill))
        return "".join(parts)


def read_cloze(line: str, place: Place, tokenizer: Tokenizer) -> Cloze:
    """Where tokens begin with a space (BPE), the space before a blank is part of what is missing."""
    pieces = BLANK.split(line)
    if len(pieces) == 1:
        raise UserError(f"{place} has no blank: write ___ or [MASK] where something is missing.")
    if _spaced(tokenizer):
        pieces = [*(piece.removesuffix(" ") for piece in pieces[:-1]), pieces[-1]]
    return Cloze(tuple(pieces), place)


def _spaced(tokenizer: Tokenizer) -> bool:
    """Whether the space before a word is part of its token."""
    texts = (tokenizer.decode([token]) for token in range(min(SEARCHED, len(tokenizer))))
    return any(len(text) > 1 and text[0] == " " for text in texts)


def encode_cloze(cloze: Cloze, tokenizer: Tokenizer, special: Sequence[int]) -> list[int]:
    """The tokens of the text, with one of the special tokens for each blank; no boundaries."""
    pieces = [tokens.tolist() for tokens in tokenizer.encode_many(cloze.pieces)]
    marked = [[*piece, token] for piece, token in zip(pieces[:-1], special)]
    return [token for piece in (*marked, pieces[-1]) for token in piece]


def refuse_long(size: int, limit: int | None, place: Place) -> None:
    if limit is not None and size > limit:
        raise UserError(f"{place} has {size} tokens with its boundaries, and the model holds {limit}. Shorten it.")


@dataclass
class _Row:
    """A text that is being filled."""

    tokens: list[int]
    blanks: list[int]                      # where they are
    found: dict[int, list[tuple[int, float]]]    # of each that is filled: tokens and their probabilities

    @property
    def left(self) -> list[int]:
        return [place for place in self.blanks if place not in self.found]


def fill_blanks(
    model: Any, tokenizer: Tokenizer, texts: Sequence[Cloze], mask: int, rows: int = 32
) -> list[dict[str, Any]]:
    """For each text the filled `answer`, and the `alternatives` for each blank: texts with their probabilities."""
    made = [_row(cloze, tokenizer, mask, model.context) for cloze in texts]
    possible = on_device(model, possible_fills(tokenizer))
    while waiting := [row for row in made if row.left]:
        for first in range(0, len(waiting), rows):
            _fill_most_certain(model, waiting[first : first + rows], possible, mask)
    return [_answer(cloze, row, tokenizer) for cloze, row in zip(texts, made)]


def possible_fills(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Tokens that spell a text of whole characters, but not the unknown word."""
    tokens = [token for token in tokenizer.spelled() if NOT_TEXT not in tokenizer.decode([token])]
    return np.array([token for token in tokens if tokenizer.token(token) != UNKNOWN], np.int64)


def _row(cloze: Cloze, tokenizer: Tokenizer, mask: int, context: int | None) -> _Row:
    tokens = [BOUNDARY, *encode_cloze(cloze, tokenizer, [mask] * cloze.blanks), BOUNDARY]
    refuse_long(len(tokens), context, cloze.place)
    return _Row(tokens, [place for place, token in enumerate(tokens) if token == mask], {})


@torch.inference_mode()
def _fill_most_certain(model: Any, rows: Sequence[_Row], possible: Tensor, mask: int) -> None:
    """Fills one blank of each row."""
    with eval_mode(model):
        logits = model.masked_logits(_batch(model, rows, mask)).float()
    if not logits.isfinite().all():
        raise UserError(f"{DIVERGED}.")
    p = logits.softmax(-1)[:, possible].cpu()                                             # (N, …)
    best = p.topk(min(ALTERNATIVES, p.shape[1]))
    tokens, first = possible.cpu()[best.indices], 0
    for row in rows:
        here = range(first, first + len(row.left))
        chosen = max(here, key=lambda number: float(best.values[number, 0]))
        place = row.left[chosen - first]
        row.found[place] = list(zip(tokens[chosen].tolist(), best.values[chosen].tolist()))
        row.tokens[place] = row.found[place][0][0]
        first = here.stop


def _batch(model: Any, rows: Sequence[_Row], mask: int) -> Batch:
    """The masks that are left are the targets that count; what stands there is not known."""
    width = max(len(row.tokens) for row in rows)
    tokens = np.array([row.tokens + [BOUNDARY] * (width - len(row.tokens)) for row in rows])
    lengths = on_device(model, np.array([len(row.tokens) for row in rows]))
    return Batch(on_device(model, tokens), on_device(model, np.where(tokens == mask, tokens, IGNORE)), lengths)


def _answer(cloze: Cloze, row: _Row, tokenizer: Tokenizer) -> dict[str, Any]:
    found = [[(tokenizer.decode([token]), p) for token, p in row.found[place]] for place in row.blanks]
    others = [[{"text": text, "p": p} for text, p in some] for some in found]
    return {"answer": cloze.filled([some[0][0] for some in found]), "alternatives": others}


# A text that is generated with its spans: sentinel, span, sentinel, span, …


class SpanDecoder:
    """Decodes a text of spans: the sentinels stay in it, by their names, so that `read_spans` finds the spans."""

    def __init__(self, tokenizer: Tokenizer, sentinels: Sequence[int]):
        self.tokenizer, self.names = tokenizer, {token: tokenizer.token(token) for token in sentinels}

    def decode(self, tokens: Sequence[int]) -> str:
        cuts = [place for place, token in enumerate(tokens) if token in self.names]
        spans = zip(cuts, [*cuts[1:], len(tokens)])
        parts = ((tokens[begin], tokens[begin + 1 : end]) for begin, end in spans)
        return "".join(self.names[sentinel] + self.tokenizer.decode(span) for sentinel, span in parts)

    def spans(self, text: str, count: int | None = None) -> list[str]:
        """Of a decoded text the span after each of the first sentinels; empty where it is missing."""
        names = list(self.names.values())[:count]
        parts = re.split(f"({'|'.join(map(re.escape, self.names.values()))})", text)
        found = dict(zip(reversed(parts[1::2]), reversed(parts[2::2])))      # of a sentinel that came twice, the first
        return [found.get(name, "") for name in names]


class EndDecoder:
    """Decodes a text up to a token that ends it."""

    def __init__(self, tokenizer: Tokenizer, end: int):
        self.tokenizer, self.end = tokenizer, end

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(takewhile(lambda token: token != self.end, tokens))


def keep_top(answer: dict[str, Any], run: str, top: int, option: str) -> dict[str, Any]:
    """The answer with so many alternatives for each blank; `option`: by which they were asked for."""
    if "alternatives" not in answer:
        raise UserError(f"{option} is for runs that fill in blanks (--task mask, span or denoise); {run} is another.")
    return {**answer, "alternatives": [some[:top] for some in answer["alternatives"]]}

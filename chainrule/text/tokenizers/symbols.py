"""Symbol tokenizer: a closed alphabet, exactly the characters of the training text, without special tokens.

A binary text has a vocabulary of two. There is no boundary: a text begins as if its first symbol, id 0, had been read,
and has no end. A character outside the alphabet is refused, except for a newline at the end of a text.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.tokenizers.characters import CODE_POINTS, add_counts, code_points
from chainrule.text.tokenizers.unit import (
    ByteUnit,
    Ids,
    Spec,
    bpe_model,
    nameable,
    refuse_vocab,
    token_names,
    tokenizer_json,
    visible,
)

MOST = 256      # symbols; a text with more has another tokenizer
UNKNOWN = np.iinfo(np.uint32).max


class SymbolLevel(ByteUnit):
    name = "symbols"
    boundary = "none"

    def __init__(self, spec: Spec):
        self.symbols = token_names(spec)
        self.names = [nameable(symbol) for symbol in self.symbols]
        self.spellings = [symbol.encode() for symbol in self.symbols]
        self.ids = np.full(CODE_POINTS, UNKNOWN, np.uint32)
        self.ids[[ord(symbol) for symbol in self.symbols]] = np.arange(len(self.symbols))

    @classmethod
    def spec(cls, symbols: Iterable[str] = ()) -> Spec:
        model = bpe_model({symbol: id for id, symbol in enumerate(symbols)}, [])
        return tokenizer_json(model, decoder={"type": "Fuse"})

    @classmethod
    def train(cls, settings: Text, chunks: Iterable[str]) -> Spec:
        refuse_vocab(settings, "a closed alphabet has all characters of the text")
        counts, last = np.zeros(CODE_POINTS, np.int64), ""
        for chunk in chunks:
            add_counts(counts, chunk)
            last = chunk[-1:] or last
        if last == "\n" and counts[ord("\n")] == 1:      # it ends the file, and is no symbol
            counts[ord("\n")] = 0
        found = [chr(point) for point in np.flatnonzero(counts).tolist()]
        if not 2 <= len(found) <= MOST:
            raise UserError(f"text.tokenizer=symbols is for an alphabet of 2 to {MOST} characters, and this text has "
                            f"{len(found):,}. Use text.tokenizer=characters.")
        return cls.spec(found)

    @classmethod
    def with_special(cls, spec: Spec, names: Sequence[str]) -> Spec:
        raise UserError("text.tokenizer=symbols is a closed alphabet, and this task needs special tokens. Use "
                        "text.tokenizer=characters.")

    def encode(self, text: str) -> Ids:
        ids = self.ids[code_points(text)]
        if (unknown := np.flatnonzero(ids == UNKNOWN)).size:
            place = int(unknown[0])
            known = " ".join(map(visible, self.symbols[:20])) + (" …" if len(self.symbols) > 20 else "")
            raise UserError(f"{text[place]!r} is not one of the {len(self.symbols)} symbols of the model: {known}")
        return ids

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.last(text) for text in texts]

    def cut(self, text: str) -> int:
        """A newline at the end may be the end of the text."""
        return len(text) - text.endswith("\n")

    def last(self, text: str) -> Ids:
        return self.encode(text if "\n" in self.symbols else text.removesuffix("\n"))

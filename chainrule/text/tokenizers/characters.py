"""Character tokenizer with byte fallback: the boundary, 256 bytes, then the characters of the text by frequency.

A character outside the vocabulary is encoded as its UTF-8 bytes, so there are no unknown characters.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.tokenizers.unit import (
    BOUNDARY_NAME,
    ByteUnit,
    Ids,
    Spec,
    bpe_model,
    nameable,
    token_names,
    tokenizer_json,
)

CODE_POINTS = 0x110000
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]
FIRST = 257                                                     # the first id that is a character


class CharacterLevel(ByteUnit):
    name = "characters"

    def __init__(self, spec: Spec):
        names = token_names(spec)
        characters = [name for name in names[FIRST:] if len(name) == 1]
        special = names[FIRST + len(characters) :]
        self.names = [*names[:FIRST], *map(nameable, characters), *special]
        spelled = [*(bytes([byte]) for byte in range(256)), *(character.encode() for character in characters)]
        self.spellings = [b"", *spelled, *(b"" for _ in special)]
        self.ids = np.zeros(CODE_POINTS, np.uint32)             # 0: not in the vocabulary
        self.ids[[ord(character) for character in characters]] = np.arange(FIRST, FIRST + len(characters))

    @classmethod
    def spec(cls, characters: Iterable[str] = ()) -> Spec:
        names = [BOUNDARY_NAME, *FALLBACK, *characters]
        decoder = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
        model = bpe_model({name: id for id, name in enumerate(names)}, [], byte_fallback=True)
        return tokenizer_json(model, decoder=decoder)

    @classmethod
    def train(cls, settings: Text, chunks: Iterable[str]) -> Spec:
        if settings.vocab is not None and settings.vocab < FIRST:
            raise UserError(
                f"text.vocab={settings.vocab} is too small for characters: {FIRST} ids are the boundary and the bytes."
            )
        counts = np.zeros(CODE_POINTS, np.int64)
        for chunk in chunks:
            add_counts(counts, chunk)
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        size = None if settings.vocab is None else settings.vocab - FIRST
        return cls.spec(map(chr, order[:size].tolist()))

    def encode(self, text: str) -> Ids:
        points = code_points(text)
        ids = self.ids[points]
        unknown = ids == 0
        return self._with_bytes(points, ids, unknown) if unknown.any() else ids

    def _with_bytes(self, points: Ids, ids: Ids, unknown: np.ndarray) -> Ids:
        unknowns = points[unknown]
        sizes = np.ones(len(ids), np.int64)
        sizes[unknown] += (unknowns > 0x7F).astype(np.int64) + (unknowns > 0x7FF) + (unknowns > 0xFFFF)
        spelled = np.repeat(unknown, sizes)
        result = np.empty(len(spelled), np.uint32)
        result[~spelled] = ids[~unknown]
        utf8 = unknowns.astype("<u4").tobytes().decode("utf-32-le").encode()
        result[spelled] = np.frombuffer(utf8, np.uint8).astype(np.uint32) + 1
        return result


def add_counts(counts: NDArray[np.int64], text: str) -> None:
    """Add how often each code point occurs; the time depends on the text and not on the number of code points."""
    seen, count = np.unique(code_points(text), return_counts=True)
    counts[seen] += count


def code_points(text: str) -> Ids:
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.uint32, copy=False)

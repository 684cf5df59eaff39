"""Byte tokenizer: 257 ids, the boundary and then each byte + 1. It needs no training and encodes every text."""

from collections.abc import Iterable

import numpy as np

from chainrule.recipe import Text
from chainrule.text.tokenizers.unit import (
    BOUNDARY_NAME,
    ByteUnit,
    Ids,
    Spec,
    bpe_model,
    refuse_vocab,
    token_names,
    tokenizer_json,
)

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def byte_letters() -> list[str]:
    """The printable letter that stands for each byte in a byte-level vocabulary (Radford et al. 2019)."""
    own = [byte for byte in range(256) if chr(byte).isprintable() and not chr(byte).isspace()]
    others = iter(range(256, 512))
    return [chr(byte) if byte in own else chr(next(others)) for byte in range(256)]


LETTERS = byte_letters()
BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}


class ByteLevel(ByteUnit):
    name = "bytes"

    def __init__(self, spec: Spec):
        self.names = token_names(spec)
        self.spellings = [b"", *(bytes([byte]) for byte in range(256)), *(b"" for _ in self.names[257:])]

    @classmethod
    def spec(cls) -> Spec:
        vocab = {BOUNDARY_NAME: 0} | {letter: byte + 1 for letter, byte in BYTES.items()}
        return tokenizer_json(bpe_model(vocab, []), pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL)

    @classmethod
    def train(cls, settings: Text, chunks: Iterable[str]) -> Spec:
        refuse_vocab(settings, "there are 256 bytes, and the boundary")
        return cls.spec()

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint32) + 1

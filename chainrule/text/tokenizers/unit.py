"""Base class of the tokenizers' units: Unit, the part that differs between bytes, characters, words and subwords.

A unit is made from a tokenizer.json that Hugging Face's `tokenizers` reads too, with the same ids; where the library is
slow, the unit has a faster way to them. `cut` says where a text can be cut so that its parts give the ids of the whole.
"""

import codecs
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.recipe import Text

Ids: TypeAlias = NDArray[np.uint32]
Spec: TypeAlias = dict[str, Any]
"""A tokenizer.json, parsed."""

BOUNDARY_NAME = "<|endoftext|>"
"""Id 0 of the lossless units. It is in the vocabulary but not among the added tokens, so no text can spell it."""

SPECIAL = re.compile(r"<\|[a-z]+(_[a-z]+)*[0-9]*\|>")
"""Names of the special tokens that a task adds after all others. No text can spell these either."""


Boundary: TypeAlias = Literal["document", "line", "none"]
"""What lies between two boundaries (id 0): a document, or each line; or there is no boundary."""


class StreamDecoder(Protocol):
    """Decodes tokens one at a time: returns text as soon as its characters are complete."""

    def feed(self, id: int) -> str: ...

    def finish(self) -> str:
        """The rest of the text, when no more tokens follow."""


class Unit:
    name: ClassVar[str]
    lossless: bool = True                  # decoding gives back every text exactly
    boundary: Boundary = "document"        # what id 0 begins and ends; none: it is a symbol like any other
    names: Sequence[str]                   # of every token, without white space

    def encode(self, text: str) -> Ids:
        """The ids of a text, or of a part of one that `cut` allows."""
        raise NotImplementedError

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        return [self.encode(text) for text in texts]

    def cut(self, text: str) -> int:
        """How many characters can be encoded whatever follows the text; 0 if none."""
        return len(text)

    def last(self, text: str) -> Ids:
        """The ids of the last part of a text, after which no more follows."""
        return self.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        pieces = self.stream_decoder()
        return "".join(map(pieces.feed, tokens)) + pieces.finish()

    def stream_decoder(self) -> StreamDecoder:
        raise NotImplementedError

    def show(self, id: int) -> str:
        return self.names[id]

    def special_tokens(self) -> dict[str, int]:
        """The ids of the tokens that no text can spell, by name."""
        return {}

    def encode_parts(self, parts: Sequence[str | int]) -> Ids:
        """The ids of one text in parts, with special tokens between them, which are given by their ids."""
        ids = [np.array([part], np.uint32) if isinstance(part, int) else self.last(part) for part in parts]
        return np.concatenate([np.empty(0, np.uint32), *ids])

    def bytes_of(self, id: int) -> bytes | None:
        """The bytes of a token, empty for a special one; None where they depend on the tokens around it."""
        return None

    @classmethod
    def with_special(cls, spec: Spec, names: Sequence[str]) -> Spec:
        """The tokenizer.json with these special tokens added, if it lacks them; no text can spell them."""
        vocab = dict(spec["model"]["vocab"])
        for name in names:
            vocab.setdefault(cls.in_file(name), len(vocab))
        return {**spec, "model": {**spec["model"], "vocab": vocab}}

    @classmethod
    def in_file(cls, name: str) -> str:
        """A special token's name in the tokenizer.json."""
        return name


class ByteUnit(Unit):
    """A unit whose tokens are byte strings, so that every text can be encoded and decoded exactly."""

    spellings: Sequence[bytes]             # of every token; empty for the boundary and special tokens

    def decode(self, tokens: Iterable[int]) -> str:
        return b"".join(map(self.spellings.__getitem__, tokens)).decode("utf-8", "replace")

    def stream_decoder(self) -> StreamDecoder:
        return ByteStreamDecoder(self.spellings)

    def special_tokens(self) -> dict[str, int]:
        return {self.names[id]: id for id, spelling in enumerate(self.spellings) if not spelling}

    def bytes_of(self, id: int) -> bytes:
        return self.spellings[id]

    def show(self, id: int) -> str:
        try:
            return visible(self.spellings[id].decode()) or self.names[id]
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in self.spellings[id])


class ByteStreamDecoder:
    def __init__(self, spellings: Sequence[bytes]):
        self.spellings = spellings
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, id: int) -> str:
        return self.decoder.decode(self.spellings[id])

    def finish(self) -> str:
        return self.decoder.decode(b"", final=True)


def visible(text: str) -> str:
    """Text with visible signs for white space."""
    drawn = text.translate({ord(" "): "·", ord("\n"): "↵", ord("\t"): "⇥", ord("\r"): "␍"})
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in drawn)


def nameable(token: str) -> str:
    """A token's name with white space and unprintable characters written as code points, so that it is one word."""
    return "".join(char if char.isprintable() and not char.isspace() else f"<U+{ord(char):04X}>" for char in token)


def tokenizer_json(
    model: Spec,
    pre_tokenizer: Spec | None = None,
    decoder: Spec | None = None,
    normalizer: Spec | None = None,
) -> Spec:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def bpe_model(vocab: dict[str, int], merges: list[Any], byte_fallback: bool = False) -> Spec:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }


def frame(spec: Spec) -> Spec:
    """A tokenizer.json without the vocabulary and merges: it identifies the unit."""
    model = {name: value for name, value in spec["model"].items() if name not in ("vocab", "merges")}
    return {**spec, "model": model}


def token_names(spec: Spec) -> list[str]:
    """The names of the tokens in the order of their ids, of a vocabulary whose ids have no gaps."""
    vocab: dict[str, int] = spec["model"]["vocab"]
    names = sorted(vocab, key=vocab.__getitem__)
    for wanted, name in enumerate(names):
        if vocab[name] != wanted:
            raise UserError(f"the vocabulary in a tokenizer.json has no token with the id {wanted}: it was damaged, or "
                            "edited. Restore it, or train again.")
    return names


def refuse_vocab(settings: Text, why: str) -> None:
    if settings.vocab is not None:
        raise UserError(
            f"text.vocab={settings.vocab} cannot be combined with text.tokenizer={settings.tokenizer}: {why}. "
            f"Remove text.vocab."
        )

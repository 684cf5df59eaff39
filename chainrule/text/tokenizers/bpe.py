r"""Byte-level BPE (byte-pair encoding; Sennrich et al. 2016, Radford et al. 2019): subwords that can encode any text.

Text is first split as GPT-4's tokenizer does: words with the space before them, numbers by three digits, punctuation,
white space. Here the length of a match is bounded, so that a word of 100 MB takes no longer than other text. No match
depends on the text before it, and only `\s(?!\S)` on the text after it: so a text may be cut wherever a match ends, and
the ids of a match can be cached. Most words are in the cache; the rest is left to `tokenizers`.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from tokenizers import Tokenizer as HuggingFace
from tokenizers import models, pre_tokenizers, trainers

from chainrule.errors import UserError
from chainrule.recipe import Text
from chainrule.text.tokenizers.bytes import BYTE_LEVEL, BYTES
from chainrule.text.tokenizers.unit import (
    BOUNDARY_NAME,
    SPECIAL,
    ByteUnit,
    Ids,
    Spec,
    bpe_model,
    token_names,
    tokenizer_json,
)

SPLIT = "|".join([
    r"'(?i:[sdmt]|ll|ve|re)",
    r"[^\r\n\p{L}\p{M}\p{N}]?[\p{L}\p{M}]{1,128}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{M}\p{N}]{1,128}[\r\n]{0,128}",
    r"\s{0,128}[\r\n]{1,128}",
    r"\s{1,128}(?!\S)",
    r"\s{1,128}",
])
LONGEST_MATCH = 512                # characters, with those that a match looks ahead at
EASY_CUT = re.compile(r"(?<=\S)(?= )|(?<=\n)(?=\S)")    # a match always ends here

# The same in Python's `re`, which has no \p: exact on ASCII. If the next word is not ASCII, all text up to an easy cut
# is one match, which `tokenizers` splits. Only so far ahead is looked for a character that is not ASCII as a match can
# be long: a text of one word takes no longer than others.
SPACE = r"\t-\r "
OTHER = r"\x00-\x08\x0e-\x1f!-/:-@\[-`{-\x7f"             # neither space, letter nor digit
ASCII_SPLIT = re.compile("|".join([
    rf"(?s:[{SPACE}]{{0,{LONGEST_MATCH}}}+[{OTHER}A-Za-z0-9]{{0,{LONGEST_MATCH}}}+[^\x00-\x7f]"
    rf".*?(?:{EASY_CUT.pattern}|\Z))",
    r"'(?i:[sdmt]|ll|ve|re)",
    rf"[\t\x0b\x0c {OTHER}]?[A-Za-z]{{1,128}}",
    r"[0-9]{1,3}",
    rf" ?[{OTHER}]{{1,128}}[\r\n]{{0,128}}",
    rf"[{SPACE}]{{0,128}}[\r\n]{{1,128}}",
    rf"[{SPACE}]{{1,128}}(?![^{SPACE}])",
    rf"[{SPACE}]{{1,128}}",
]))

SLICE = 1 << 16                    # characters encoded at a time on one core
FOREIGN = 1 / 8                    # a slice with a larger share of non-ASCII bytes is left to `tokenizers`
CACHED = 1 << 19                   # matches kept in the cache, of at most
SHORT = 32                         # characters each
SMALLEST = 257                     # the boundary and the bytes
SAMPLE = 16 << 20                  # characters that the merges are learned from


class BPE(ByteUnit):
    name = "bpe"

    def __init__(self, spec: Spec):
        self.names = token_names(spec)
        self.spellings = [b"", *map(spelling, self.names[1:])]
        self.tokenizer = HuggingFace.from_str(json.dumps(spec))
        self.matches = MatchCache(self.tokenizer)

    @classmethod
    def spec(cls, names: Sequence[str] = (), merges: Iterable[Sequence[str]] = ()) -> Spec:
        split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
        vocab = {name: id for id, name in enumerate([BOUNDARY_NAME, *names])}
        return tokenizer_json(
            bpe_model(vocab, [list(merge) for merge in merges]),
            pre_tokenizer={"type": "Sequence", "pretokenizers": [split, BYTE_LEVEL]},
            decoder=BYTE_LEVEL,
        )

    @classmethod
    def train(cls, settings: Text, chunks: Iterable[str]) -> Spec:
        if settings.vocab is not None and settings.vocab < SMALLEST:
            raise UserError(
                f"text.vocab={settings.vocab} is too small for bpe: {SMALLEST} ids are the boundary and the bytes."
            )
        sample, characters = even_sample(chunks, SAMPLE)
        learner = HuggingFace(models.BPE())
        learner.pre_tokenizer = HuggingFace.from_str(json.dumps(cls.spec())).pre_tokenizer
        most = SMALLEST + 4 * sum(map(len, sample))    # a merge joins two bytes; each id takes memory
        trainer = trainers.BpeTrainer(
            vocab_size=min(settings.vocab or fitting_vocab(characters), most) - 1,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        learner.train_from_iterator(sample, trainer)
        learned = json.loads(learner.to_str())
        return cls.spec(token_names(learned), learned["model"]["merges"])

    def encode(self, text: str) -> Ids:
        slices = list(easy_slices(EASY_CUT, text, SLICE))
        foreign = iter(hugging_face_ids(self.tokenizer, list(filter(is_foreign, slices))))     # on all cores
        parts = (next(foreign) if is_foreign(slice) else self._look_up(slice) for slice in slices)
        return np.concatenate([np.empty(0, np.uint32), *parts])

    def _look_up(self, text: str) -> Ids:
        matches = ASCII_SPLIT.findall(text)
        return np.fromiter(chain.from_iterable(map(self.matches.__getitem__, matches)), np.uint32)

    def cut(self, text: str) -> int:
        return last_match(EASY_CUT, text) or self._hard_cut(text)

    def _hard_cut(self, text: str) -> int:
        """Where the last complete match ends; not after a space: the text after it decides how spaces are split."""
        matches = self.tokenizer.pre_tokenizer.pre_tokenize_str(text)
        starts = (int(start) for _, (start, _) in matches if start <= len(text) - LONGEST_MATCH)
        return max((start for start in starts if not text[start - 1 : start].isspace()), default=0)


class MatchCache(dict[str, Sequence[int]]):
    """The ids of each match; short matches are cached."""

    def __init__(self, tokenizer: HuggingFace):
        self.tokenizer = tokenizer

    def __missing__(self, match: str) -> Sequence[int]:
        ids: list[int] = self.tokenizer.encode(match, add_special_tokens=False).ids
        if len(match) <= SHORT:
            if len(self) >= CACHED:
                self.clear()
            self[match] = ids
        return ids


def spelling(name: str) -> bytes:
    """The bytes of a token. No subword has the name of a special token, since no match does."""
    return b"" if SPECIAL.fullmatch(name) else bytes(map(BYTES.__getitem__, name))


def is_foreign(text: str) -> bool:
    """Whether most matches in a slice would not be in the cache: it is not ASCII, or has hardly any spaces."""
    return len(text) > 2 * SLICE or len(text.encode()) - len(text) > FOREIGN * len(text)


def hugging_face_ids(tokenizer: HuggingFace, texts: Sequence[str]) -> list[Ids]:
    for text in texts:
        text.encode()              # for a lone surrogate `tokenizers` only reports that it is not a string
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, np.uint32) for encoding in encoded]


def fitting_vocab(characters: int) -> int:
    """A power of two near the square root of the text's length: 1,024 for 1 MB, 8,192 for 100 MB, 32,768 for 1 GB."""
    return int(2 ** min(max(round(math.log2(max(characters, 1)) / 2), 9), 15))


def even_sample(chunks: Iterable[str], limit: int) -> tuple[list[str], int]:
    """Chunks evenly spread over the text, at most `limit` characters of it, and the length of the whole text."""
    sample: list[str] = []
    stride, kept, characters = 1, 0, 0
    for number, chunk in enumerate(chunks):
        characters += len(chunk)
        if number % stride == 0:
            sample.append(chunk[:limit])
            kept += len(sample[-1])
        while kept > limit and len(sample) > 1:      # drop every second one
            stride *= 2
            sample = sample[::2]
            kept = sum(map(len, sample))
    return sample, characters


def last_match(pattern: re.Pattern[str], text: str) -> int:
    """Where `pattern` last matches within the text; 0 if nowhere. The search begins at the end."""
    size = 256
    while True:
        start = max(len(text) - size, 1)
        places = [found.start() for found in pattern.finditer(text, start) if found.start() < len(text)]
        if places or start == 1:
            return places[-1] if places else 0
        size *= 16


def easy_slices(pattern: re.Pattern[str], text: str, size: int) -> Iterator[str]:
    """The text in slices of about `size`, cut where `pattern` matches."""
    start = 0
    while start < len(text):
        found = pattern.search(text, start + size) if start + size < len(text) else None
        end = found.start() if found else len(text)
        yield text[start:end]
        start = end

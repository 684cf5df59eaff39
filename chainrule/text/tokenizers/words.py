"""Word tokenizer: words separated by white space, each line a text of its own. Not lossless: rare words become <unk>.

White space is ASCII white space, as in KenLM. The newline is the name of id 0 in the vocabulary: no word can spell the
boundary, and `</s>` in a text is an ordinary word. Names of special tokens begin with a newline for the same reason.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from chainrule.errors import UserError
from chainrule.model import BOUNDARY
from chainrule.recipe import Text
from chainrule.text.tokenizers.unit import Ids, Spec, Unit, token_names, tokenizer_json
from chainrule.text.tokenizers.word_lookup import WordLookup, count_words, find_words

UNKNOWN = "<unk>"
RESERVED = (UNKNOWN, "<s>", "</s>")     # not counted as words: ARPA files give them a special meaning
SPACE = " \t\r\v\f"
GAP = re.compile(rb"[ \n]")
LOOK_UP = 1 << 18                       # bytes looked up at a time
NEWLINE = ord("\n")


class WordLevel(Unit):
    name = "words"
    lossless = False
    lines = True

    def __init__(self, spec: Spec):
        names = token_names(spec)
        words = [name for name in names if not name.startswith("\n")]
        self.names = ["</s>", *words, *(name[1:] for name in names[1 + len(words) :])]
        self.spellings = WordLookup([word.encode() for word in words])

    @classmethod
    def spec(cls, words: Iterable[str] = ()) -> Spec:
        vocab = {name: id for id, name in enumerate(["\n", UNKNOWN, *words])}
        lines = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False}
        spaces = {"type": "Split", "pattern": {"Regex": r"[ \t\r\x0b\x0c]+"}, "behavior": "Removed", "invert": False}
        return tokenizer_json(
            {"type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN},
            normalizer={"type": "Replace", "pattern": {"Regex": r"\n\z"}, "content": ""},
            pre_tokenizer={"type": "Sequence", "pretokenizers": [lines, spaces]},
        )

    @classmethod
    def train(cls, settings: Text, chunks: Iterable[str]) -> Spec:
        """Chunks must not end within a word."""
        if settings.vocab is not None and settings.vocab < 3:
            raise UserError(f"text.vocab={settings.vocab} is too small: two ids are the boundary and {UNKNOWN}.")
        counts = count_words(part for chunk in chunks for part in slices(chunk.encode()))
        for name in RESERVED:
            counts.pop(name.encode(), None)
        kept = sorted((-count, word) for word, count in counts.items() if count >= settings.min_count)
        if not kept:
            raise UserError(
                f"no word of the text occurs {settings.min_count} times. Use more text, or text.min_count=1."
            )
        size = None if settings.vocab is None else settings.vocab - 2
        return cls.spec(word.decode() for _, word in kept[:size])

    @classmethod
    def in_file(cls, name: str) -> str:
        return "\n" + name

    def encode(self, text: str) -> Ids:
        parts = [self._look_up(part) for part in slices(text.encode())]
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def _look_up(self, text: bytes) -> Ids:
        begins, ends = find_words(text)
        place = self.spellings.find(text, begins, ends)
        ids = np.where(place < 0, 1, place + 1).astype(np.uint32)
        newlines = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
        return np.insert(ids, np.searchsorted(begins, newlines), BOUNDARY)

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """All texts in one look-up, unless one of them has several lines."""
        stream = self.encode("\n".join(text.removesuffix("\n") for text in texts))
        ends = np.flatnonzero(stream == BOUNDARY)
        if len(ends) + 1 != len(texts):
            return [self.last(text) for text in texts]
        return np.split(stream[stream != BOUNDARY], ends - np.arange(len(ends)))

    def cut(self, text: str) -> int:
        """Before the last newline, which is not a boundary if the text ends with it; else after the last space."""
        newline = text.rfind("\n")
        return newline if newline > 0 else 1 + max(text.rfind(space) for space in SPACE)

    def last(self, text: str) -> Ids:
        return self.encode(text.removesuffix("\n"))

    def stream_decoder(self) -> "WordStreamDecoder":
        return WordStreamDecoder(self.names, special=1 + len(self.spellings))


class WordStreamDecoder:
    """Words with spaces between them, and lines. Special tokens, the last of the vocabulary, are not shown."""

    def __init__(self, names: Sequence[str], special: int):
        self.names, self.special = names, special
        self.in_line = False

    def feed(self, id: int) -> str:
        if id >= self.special:
            return ""
        space = " " if self.in_line and id != BOUNDARY else ""
        self.in_line = id != BOUNDARY
        return space + (self.names[id] if self.in_line else "\n")

    def finish(self) -> str:
        return ""


def slices(text: bytes) -> Iterator[bytes]:
    """The text in slices of about LOOK_UP bytes; each but the last ends with a newline or space."""
    start = 0
    while start < len(text):
        found = GAP.search(text, start + LOOK_UP)
        end = found.end() if found else len(text)
        yield text[start:end]
        start = end

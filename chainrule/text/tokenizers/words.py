"""Word tokenizer: words separated by white space, each line a text of its own. Not lossless: rare words become <unk>.

White space is ASCII white space, as in KenLM. The newline is the name of id 0 in the vocabulary: no word can spell the
boundary, and `</s>` in a text is an ordinary word. Names of special tokens begin with a newline for the same reason.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.model import BOUNDARY
from chainrule.recipe import Text
from chainrule.text.tokenizers.unit import Ids, Spec, Unit, token_names, tokenizer_json

# Word look-up: a hash table that finds the ids of all words of a text at once, without Python strings.
#
# A word of up to sixteen bytes is given by its length, its first eight and its last eight bytes, read as two integers.
# These three hash to a slot with one candidate, which is then compared. Longer words and hash collisions are few and go
# through a dictionary.

Places = NDArray[np.int64]
Numbers = NDArray[np.uint64]

LONG = 17                            # bytes; two integers cannot hold a word of this length
MASKS = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(LONG + 1)], np.uint64)
HEAD, TAIL, SIZE = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


def find_words(text: bytes) -> tuple[Places, Places]:
    """Where each word begins, and where it ends; between them is ASCII's white space, as bytes.split defines it."""
    letters, white = np.frombuffer(text, np.uint8), np.ones(len(text) + 2, bool)
    np.less(letters - 9, 5, out=white[1:-1])                     # tab, newline, \v, \f, return
    white[1:-1] |= letters == 32
    edges = np.flatnonzero(white[1:] != white[:-1])
    return edges[0::2], edges[1::2]


class WordLookup:
    """A vocabulary: `find` returns the index of each word in it, or -1."""

    def __init__(self, words: Sequence[bytes]):
        self.places = {word: place for place, word in enumerate(words)}
        ends = np.cumsum([len(word) + 1 for word in words], dtype=np.int64) - 1
        begins = ends - np.fromiter(map(len, words), np.int64, len(words))
        self.head, self.tail, self.size = _numbers(b" ".join(words), begins, ends)
        self.shift = np.uint64(64 - max(16 * len(words), 1).bit_length())
        self.slots = np.full(1 << int(64 - self.shift), -1, np.int32)
        # backwards, so that of several words the first, which is the most frequent, keeps the slot
        self.slots[self._slot(self.head, self.tail, self.size)[::-1]] = np.arange(len(words), dtype=np.int32)[::-1]

    def __len__(self) -> int:
        return len(self.places)

    def _slot(self, head: Numbers, tail: Numbers, size: Numbers) -> Places:
        mixed: Numbers = ((head * HEAD) ^ (tail * TAIL >> np.uint64(7))) + size * SIZE
        return (mixed >> self.shift).astype(np.int64)

    def find(self, text: bytes, begins: Places, ends: Places) -> NDArray[np.int32]:
        head, tail, size = _numbers(text, begins, ends)
        place = self.slots[self._slot(head, tail, size)]
        same = np.ones(len(place), bool) if len(self) else np.zeros(len(place), bool)
        for ours, theirs in ((self.head, head), (self.tail, tail), (self.size, size)) if len(self) else ():
            same &= ours[place] == theirs
        unsure = np.flatnonzero((~same & (place >= 0)) | (size >= LONG))
        for at in unsure.tolist():
            place[at] = self.places.get(text[begins[at] : ends[at]], -1)
        return place


def _numbers(text: bytes, begins: Places, ends: Places) -> tuple[Numbers, Numbers, Numbers]:
    """The first eight bytes of each word, the last eight of one with more than eight, and its length up to LONG."""
    framed = bytes(8) + text + bytes(8)
    eights = np.ndarray((len(framed) - 7,), "<u8", framed, strides=(1,))   # the eight bytes from each place on
    size = np.minimum(ends - begins, LONG)
    more = np.flatnonzero(size > 8)
    tail = np.zeros(len(size), np.uint64)
    tail[more] = eights[ends[more]]
    return eights[begins + 8] & MASKS[size], tail, size.astype(np.uint64)


def count_words(texts: Iterable[bytes]) -> Counter[bytes]:
    """How often each word occurs. Words seen before are counted by look-up, only new ones in a dictionary."""
    known, counts = WordLookup([]), np.zeros(0, np.int64)
    fresh: Counter[bytes] = Counter()
    for text in texts:
        begins, ends = find_words(text)
        place = known.find(text, begins, ends)
        counts = counts + np.bincount(place[place >= 0], minlength=len(known))
        new = place < 0
        fresh.update(text[begin:end] for begin, end in zip(begins[new].tolist(), ends[new].tolist()))
        if len(fresh) > len(known):
            fresh.update(dict(zip(known.places, counts.tolist())))
            known, counts = WordLookup(list(fresh)), np.fromiter(fresh.values(), np.int64, len(fresh))
            fresh = Counter()
    fresh.update(dict(zip(known.places, counts.tolist())))
    return fresh


UNKNOWN = "<unk>"
MIN_COUNT = 2                           # rarer words are <unk>, unless the text has given up its rare words to <unk>
RESERVED = (UNKNOWN, "<s>", "</s>")     # not counted as words: ARPA files give them a special meaning
SPACE = " \t\r\v\f"
GAP = re.compile(rb"[ \n]")
LOOK_UP = 1 << 18                       # bytes looked up at a time
NEWLINE = ord("\n")


class WordLevel(Unit):
    name = "words"
    lossless = False
    boundary = "line"

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
        least = settings.min_count or (1 if counts[UNKNOWN.encode()] else MIN_COUNT)
        for name in RESERVED:
            counts.pop(name.encode(), None)
        kept = sorted((-count, word) for word, count in counts.items() if count >= least)
        if not kept:
            raise UserError(f"no word of the text occurs {least} times. Use more text, or text.min_count=1.")
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

    def special_tokens(self) -> dict[str, int]:
        first = 1 + len(self.spellings)
        return {self.names[id]: id for id in (BOUNDARY, *range(first, len(self.names)))}

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

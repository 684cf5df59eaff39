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
# A word of up to fifteen bytes is two integers: its first eight bytes; the others, and its length in the top byte. Both
# hash to a slot with one candidate, which is then compared. Longer words and hash collisions are few and go through a
# dictionary.

Places = NDArray[np.int64]
Numbers = NDArray[np.uint64]

LONG = 16                            # bytes; two integers cannot hold a word of this length
MASKS = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(LONG + 1)], np.uint64)
HEAD, TAIL = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], np.uint64)
NEWLINE = ord("\n")


def find_words(text: bytes, newlines: bool = False) -> tuple[Places, Places]:
    """Where each word begins, and where it ends; between them is ASCII's white space, as bytes.split defines it.

    `newlines`: newlines are not white space but letters.
    """
    letters, white = np.frombuffer(text, np.uint8), np.ones(len(text) + 2, bool)
    np.less(letters - 9, 5, out=white[1:-1])                     # tab, newline, \v, \f, return
    white[1:-1] |= letters == 32
    if newlines:
        white[1:-1] &= letters != NEWLINE
    edges = np.flatnonzero(white[1:] != white[:-1])
    return edges[0::2], edges[1::2]


class WordLookup:
    """A vocabulary: `find` returns the index of each word in it, or -1."""

    def __init__(self, words: Sequence[bytes]):
        self.places = {word: place for place, word in enumerate(words)}
        ends = np.cumsum([len(word) + 1 for word in words], dtype=np.int64) - 1
        begins = ends - np.fromiter(map(len, words), np.int64, len(words))
        self.head, self.tail, _ = _numbers(b" ".join(words), begins, ends)
        self.bits = max(8 * len(words), 1).bit_length()
        self.slots = _first_in_slot(self._slot(self.head, self.tail), self.bits)       # the first is the most frequent

    def __len__(self) -> int:
        return len(self.places)

    def _slot(self, head: Numbers, tail: Numbers) -> Places:
        return _slots(head, tail, self.bits)

    def find(self, text: bytes, begins: Places, ends: Places) -> NDArray[np.int32]:
        if not len(self):
            return np.full(len(begins), -1, np.int32)
        head, tail, long = _numbers(text, begins, ends)
        place = self.slots.take(self._slot(head, tail))
        same = (self.head.take(place) == head) & (self.tail.take(place) == tail)     # of place -1 it is the last word's
        unsure = np.append(np.flatnonzero((place >= 0) & ~same), long)
        words = (text[begin:end] for begin, end in zip(begins[unsure].tolist(), ends[unsure].tolist()))
        place[unsure] = [self.places.get(word, -1) for word in words]
        return place


def _slots(head: Numbers, tail: Numbers, bits: int) -> Places:
    mixed: Numbers = (head * HEAD) ^ (tail * TAIL >> np.uint64(7))
    return (mixed >> np.uint64(64 - bits)).astype(np.int64)


def _first_in_slot(slot: Places, bits: int) -> NDArray[np.int32]:
    """(2^bits,) the first of the words that hash to each slot, or -1."""
    first = np.full(1 << bits, -1, np.int32)
    first[slot[::-1]] = np.arange(len(slot), dtype=np.int32)[::-1]       # of several numbers the last one stays
    return first


def _numbers(text: bytes, begins: Places, ends: Places) -> tuple[Numbers, Numbers, Places]:
    """Both integers of each word, and which words are too long for them."""
    framed = text + bytes(16)
    eights = np.ndarray((len(framed) - 7,), "<u8", framed, strides=(1,))   # the eight bytes from each place on
    size = np.minimum(ends - begins, LONG)
    more = np.flatnonzero(size > 8)
    tail = size.astype(np.uint64) << np.uint64(56)
    tail[more] |= eights[begins[more] + 8] & MASKS.take(size[more] - 8)
    return eights[begins] & MASKS.take(size), tail, more[size[more] == LONG]


def count_words(texts: Iterable[bytes]) -> Counter[bytes]:
    """How often each word occurs. Words seen before are counted by look-up, only new ones in a dictionary."""
    known, counts = WordLookup([]), np.zeros(0, np.int64)        # no word is both known and fresh
    fresh: Counter[bytes] = Counter()
    for text in texts:
        begins, ends = find_words(text)
        place = known.find(text, begins, ends)
        counts = counts + np.bincount(place + 1, minlength=len(known) + 1)[1:]
        new = np.flatnonzero(place < 0)
        for word, count in _distinct(text, begins[new], ends[new]):
            fresh[word] += count
        if 2 * len(fresh) > len(known):
            known, counts = WordLookup([*known.places, *fresh]), np.append(counts, list(fresh.values()))
            fresh = Counter()
    return Counter(dict(zip(known.places, counts.tolist())) | fresh)


def _distinct(text: bytes, begins: Places, ends: Places) -> Iterator[tuple[bytes, int]]:
    """The words with their counts; a long word, or one whose slot has another, comes once for each occurrence."""
    head, tail, long = _numbers(text, begins, ends)
    bits = max(4 * len(head), 1).bit_length()
    slot = _slots(head, tail, bits)
    first = _first_in_slot(slot, bits)[slot]
    same = (head[first] == head) & (tail[first] == tail)
    same[long] = False
    counts = np.bincount(np.where(same, first, np.arange(len(first))))
    chosen = np.flatnonzero(counts)
    for begin, end, count in zip(begins[chosen].tolist(), ends[chosen].tolist(), counts[chosen].tolist()):
        yield text[begin:end], count


UNKNOWN = "<unk>"
MIN_COUNT = 2                           # rarer words are <unk>, unless the text has given up its rare words to <unk>
RESERVED = (UNKNOWN, "<s>", "</s>")     # not counted as words: ARPA files give them a special meaning
SPACE = " \t\r\v\f"
GAP = re.compile(rb"[ \n]")
LOOK_UP = 1 << 18                       # bytes looked up at a time


class WordLevel(Unit):
    name = "words"
    lossless = False
    boundary = "line"

    def __init__(self, spec: Spec):
        names = token_names(spec)
        words = [names[BOUNDARY], *(name for name in names if not name.startswith("\n"))]
        self.names = ["</s>", *words[1:], *(name[1:] for name in names[len(words) :])]
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
        kept = sorted(word for word, count in counts.items() if count >= least)
        kept.sort(key=counts.__getitem__, reverse=True)          # the most frequent first, others as they were
        if not kept:
            raise UserError(f"no word of the text occurs {least} times. Use more text, or text.min_count=1; for a "
                            "language without spaces, text.tokenizer=characters.")
        size = None if settings.vocab is None else settings.vocab - 2
        return cls.spec(word.decode() for word in kept[:size])

    @classmethod
    def in_file(cls, name: str) -> str:
        return "\n" + name

    def encode(self, text: str) -> Ids:
        parts = [self._look_up(part) for part in slices(text.encode())]
        return np.concatenate(parts) if parts else np.empty(0, np.uint32)

    def _look_up(self, text: bytes) -> Ids:
        text = text.replace(b"\n", b" \n ")                         # then each newline is a word, that of the boundary
        place = self.spellings.find(text, *find_words(text, newlines=True))
        return np.where(place < 0, 1, place).view(np.uint32)

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
        first = len(self.spellings)
        return {self.names[id]: id for id in (BOUNDARY, *range(first, len(self.names)))}

    def stream_decoder(self) -> "WordStreamDecoder":
        return WordStreamDecoder(self.names, special=len(self.spellings))


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

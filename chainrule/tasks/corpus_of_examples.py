"""Examples ready to be learned from: read, split, with a tokenizer of their own or a given one, and turned into tokens.

It has what a `Corpus` has, so that one trainer serves both; and the names of classes or tags, which a run keeps.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.errors import UserError
from chainrule.model import Batch
from chainrule.recipe import Text
from chainrule.tasks.encoding import (
    DELIMITER,
    EXTRACT,
    encode_captioned,
    encode_labelled,
    encode_tagged,
    encode_translated,
)
from chainrule.tasks.examples import Captioned, Example, Labelled, Names, Tagged, Translated, names_of, written
from chainrule.tasks.padding import Examples, Places, Ragged, Sequences, Tags
from chainrule.tasks.splits_of_examples import gather_examples
from chainrule.text.tokenizers.tokenizer import Tokenizer, train_tokenizer

# The words of a batch letter by letter, for models that read them so (layers/char_cnn.py).
#
# Shapes: B rows, T words, F bytes of the longest word.

LONGEST = 24    # bytes; of longer words both ends stay, which say most about their kind


def spell(rows: Sequence[Sequence[str]], longest: int = LONGEST) -> Tensor:
    """(B, T, F): the bytes of each word in UTF-8, with 0 behind them; a word of "" and the padding are 0 throughout."""
    spelled = [[_shortened(word.encode(), longest) for word in row] for row in rows]
    words, width = max(map(len, spelled)), max((len(word) for row in spelled for word in row), default=0)
    width = max(width, 1)
    padded = (b"".join(word.ljust(width, b"\0") for word in row).ljust(words * width, b"\0") for row in spelled)
    return torch.frombuffer(bytearray(b"".join(padded)), dtype=torch.uint8).view(len(rows), words, width)


def _shortened(word: bytes, longest: int) -> bytes:
    first = longest // 2
    return word if len(word) <= longest else word[:first] + word[first - longest :]


Encode: TypeAlias = Callable[[Sequence[Example]], Examples]

ANSWERS = {"classify": "classes", "tag": "tags"}
"""Tasks whose answers have names, and what they are called."""


@dataclass(frozen=True)
class ExampleSplit:
    examples: tuple[Example, ...]
    encoded: Examples
    tokens: NDArray[Any]            # all tokens that are read, or of a text that has a source, that are written
    bytes: int                      # of everything written in the examples
    documents: int                  # examples
    sha256: str                     # of the same


@dataclass(frozen=True)
class ExampleCorpus:
    splits: Mapping[str, ExampleSplit]
    tokenizer: Tokenizer
    notes: tuple[str, ...]
    labels: Names = ()              # of classes or tags

    @property
    def answers(self) -> int:
        """How many a model chooses from."""
        return len(self.labels) or len(self.tokenizer)


@dataclass(frozen=True)
class Encoding:
    """How examples of a task become tokens."""

    task: str
    tokenizer: Tokenizer
    labels: Names
    limit: int | None = None        # most tokens that the model holds
    truncate: Any = "false"
    letters: bool = False           # the letters of words are given beside their tokens
    in_one_row: bool = False        # a source counts among the tokens that the model holds

    def __call__(self, examples: Sequence[Example]) -> Examples:
        if self.task == "classify":
            some = cast(Sequence[Labelled], examples)
            return encode_labelled(some, self.tokenizer, self.labels, self.limit, self.truncate)
        if self.task == "tag":
            tagged = cast(Sequence[Tagged], examples)
            tags = encode_tagged(tagged, self.tokenizer, self.labels, self.limit, self.truncate)
            return Lettered(tags) if self.letters else tags
        if self.task == "caption":
            return encode_captioned(cast(Sequence[Captioned], examples), self.tokenizer, self.limit, self.truncate)
        pairs, limit = cast(Sequence[Translated], examples), self.limit
        if limit is not None and self.in_one_row:
            limit //= 2                             # so that what is written has room, however long its source
        return encode_translated(pairs, self.tokenizer, limit, self.truncate, source_limit=limit)


@dataclass(frozen=True)
class Lettered:
    """Tagged words with their letters as the batch's source: those of a word lie where its tag does."""

    tags: Tags

    def __len__(self) -> int:
        return len(self.tags)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.tags.notes

    @property
    def answers(self) -> int:
        return self.tags.answers

    @property
    def sizes(self) -> tuple[Places, ...]:
        return self.tags.sizes

    @property
    def places(self) -> Ragged:
        return self.tags.places

    @property
    def targets(self) -> Ragged:
        return self.tags.targets

    @property
    def words(self) -> Ragged:
        return self.tags.words

    @property
    def tokens(self) -> Ragged:
        return self.tags.tokens

    def batch(self, rows: Places, widths: Sequence[int]) -> Batch:
        batch = self.tags.batch(rows, widths)
        return replace(batch, source=self._letters(rows, batch.tokens.shape[1]))

    def _letters(self, rows: Places, width: int) -> Tensor:
        spelled = []
        for row in rows.tolist():
            line = [""] * width
            for place, word in zip(self.places[row].tolist(), self.words[row]):
                line[place] = word
            spelled.append(line)
        return spell(spelled)


def prepare_examples(
    task: str,
    texts: Sequence[str],
    settings: Text,
    *,
    valid: Sequence[str] = (),
    test: Sequence[str] = (),
    seed: int = 1,
    tokenizer: Tokenizer | None = None,
    encoding: Callable[[Tokenizer, Names], Encode],
) -> ExampleCorpus:
    """The examples of a task by split, as `encoding` has them.

    `tokenizer`: one that comes from elsewhere; it is given the task's own tokens.
    """
    gathered = gather_examples(task, texts, settings, valid=valid, test=test, seed=seed)
    train = gathered.splits["train"]
    tokenizer = tokenizer or train_tokenizer(settings, _ended(written(train)))
    if task == "classify":
        tokenizer = tokenizer.with_special([name for name in (DELIMITER, EXTRACT) if tokenizer.id(name) is None])
    labels = _labels(task, train)
    encode = encoding(tokenizer, labels)
    splits = {name: make_split(examples, encode) for name, examples in gathered.splits.items()}
    notes = [f"{name}: {note}" for name, split in splits.items() for note in split.encoded.notes]
    return ExampleCorpus(splits, tokenizer, (*gathered.notes, *notes), labels)


def make_split(examples: tuple[Example, ...], encode: Encode) -> ExampleSplit:
    if not examples:
        raise UserError("there are no examples here.")
    texts = [text.encode() for text in written(examples)]
    encoded = encode(examples)
    rows: Any = encoded.targets if isinstance(encoded, Sequences) else cast(Any, encoded).tokens
    digest = hashlib.sha256(b"\0".join(texts)).hexdigest()
    return ExampleSplit(examples, encoded, rows.flat, sum(map(len, texts)), len(examples), digest)


def _ended(texts: Any) -> Any:
    """Texts as pieces of one, each on a line of its own."""
    for text in texts:
        yield text + "\n"


def _labels(task: str, examples: Sequence[Example]) -> Names:
    if task == "classify":
        labels = names_of(example.label for example in cast(Sequence[Labelled], examples))
    elif task == "tag":
        labels = names_of(tag for example in cast(Sequence[Tagged], examples) for tag in example.tags)
    else:
        return ()
    if len(labels) < 2:
        raise UserError(f"two {ANSWERS[task]} or more are wanted to learn from; here is {', '.join(labels) or 'none'}.")
    return labels

"""Examples into tokens, once.

    classify    0 text E, or 0 text D text E          target: a class          E, D: special tokens
    tag         0 word word …                         target: a tag at the last token of each word
    translate   0 y1 … yn, from the source x1 … xm 0  target: y1 … yn 0

The last token of a word has its tag since there a model of one direction, too, has read the word whole.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.model import BOUNDARY
from chainrule.tasks.examples import Captioned, Labelled, Names, Tagged, Translated, numbers_of
from chainrule.tasks.padding import Classes, Places, Ragged, Sequences, Tags, alike, beside, encode, ragged, within
from chainrule.tasks.task import Truncate
from chainrule.text.tables import Place
from chainrule.text.tokenizers.tokenizer import Tokenizer

# Texts that are longer than a model holds: refused, or cut at the end or in the middle, and how many were is said.

KEPT = {"true": "the beginning is", "ends": "both ends are"}


def fit(
    texts: list[Ragged], limit: int | None, special: int, truncate: Truncate, places: Sequence[Place]
) -> tuple[list[Ragged], tuple[str, ...]]:
    """The texts of each row, cut so that with `special` tokens more they are within `limit`; and what to say of it."""
    total = np.sum([text.lengths for text in texts], axis=0)
    if limit is None or not len(total) or total.max() + special <= limit:
        return texts, ()
    if truncate == "false":
        worst = int(total.argmax())
        raise UserError(
            f"{places[worst]} has {total[worst] + special} tokens, and the model holds {limit}. "
            "Take text.truncate=true to keep the beginning of long texts, or text.truncate=ends to keep both ends."
        )
    room = max(limit - special, 0)
    long, lost = int((total > room).sum()), float(np.maximum(total - room, 0).sum() / total.sum())
    note = f"{long:,} of {len(total):,} texts are longer than {limit} tokens: {KEPT[truncate]} kept, {lost:.1%} is lost"
    sizes = _shares([text.lengths for text in texts], room)
    return [text.kept(size, truncate == "ends") for text, size in zip(texts, sizes)], (note,)


def _shares(lengths: list[Places], room: int) -> list[Places]:
    """How much of each text stays: of two, the longer one gives way first."""
    if len(lengths) == 1:
        return [np.minimum(lengths[0], room)]
    first, second = lengths
    kept = np.minimum(second, np.maximum(room // 2, room - first))
    return [np.minimum(first, room - kept), kept]


DELIMITER, EXTRACT = "<|delimiter|>", "<|extract|>"


def encode_labelled(
    examples: Sequence[Labelled], tokenizer: Tokenizer, classes: Names, limit: int | None, truncate: Truncate = "false"
) -> Classes:
    """Classified texts; `tokenizer` has DELIMITER and EXTRACT, and `classes` are the names of the classes."""
    parts = _as_many(examples)
    texts = [encode(tokenizer, (example.texts[part] for example in examples)) for part in range(parts)]
    places = [example.place for example in examples]
    texts, notes = fit(texts, limit, 1 + parts, truncate, places)
    begin, extract = alike(BOUNDARY, len(examples)), alike(_id(tokenizer, EXTRACT), len(examples))
    between = [alike(_id(tokenizer, DELIMITER), len(examples))] if parts == 2 else []
    tokens = beside([begin, texts[0], *between, *texts[1:], extract])
    return Classes(tokens, numbers_of([example.label for example in examples], classes, places, "label"), notes)


def _as_many(examples: Sequence[Labelled]) -> int:
    """How many texts each example has, which is the same for all."""
    parts = len(examples[0].texts) if examples else 1
    for example in examples:
        if len(example.texts) != parts or parts > 2:
            raise UserError(f"{example.place} has {len(example.texts)} texts; every example has one, or every one two.")
    return parts


def encode_tagged(
    examples: Sequence[Tagged], tokenizer: Tokenizer, tags: Names, limit: int | None, truncate: Truncate = "false"
) -> Tags:
    """Tagged words, a space before each but the first of a sentence."""
    known: dict[str, int] = {}
    space = "" if tokenizer.lines else " "
    spelled = [known.setdefault(space * (place > 0) + word, len(known))
               for example in examples for place, word in enumerate(example.words)]
    words = encode(tokenizer, known).take(np.array(spelled, np.int64))
    sentences = np.cumsum([len(example.words) for example in examples], dtype=np.int64)    # where each ends, in words
    _refuse_wordless(words, sentences, examples)
    ends = np.append(0, np.cumsum(words.lengths))[np.append(0, sentences)]                   # and in tokens
    tokens, places = Ragged(words.flat, ends[1:]), Ragged(_last(words, sentences, ends), sentences)
    labels = [tag for example in examples for tag in example.tags or [None] * len(example.words)]
    where = [example.place for example in examples for _ in example.words]
    numbers = numbers_of(labels, tags, where, "tag")
    written = np.array([word for example in examples for word in example.words], object)
    kept, notes = fit([tokens], limit, 1, truncate, [example.place for example in examples])
    if notes:
        places, here = _still_there(tokens, kept[0], places, truncate)
        numbers, written = numbers[here], written[here]
    read = beside([alike(BOUNDARY, len(examples)), kept[0]])
    return Tags(read, places, Ragged(numbers, places.ends), Ragged(written, places.ends), notes)


def _last(words: Ragged, sentences: Places, ends: Places) -> NDArray[np.int32]:
    """Where the last token of each word stands in its row, behind the boundary."""
    begins = np.repeat(ends[:-1], np.diff(sentences, prepend=0))
    return (words.ends - begins).astype(np.int32)


def _refuse_wordless(words: Ragged, sentences: Places, examples: Sequence[Tagged]) -> None:
    for word in np.flatnonzero(words.lengths == 0)[:1]:
        sentence = int(np.searchsorted(sentences, word, "right"))
        example = examples[sentence]
        text = example.words[int(word - sentences[sentence]) + len(example.words)]
        raise UserError(f"{example.place}: the tokenizer makes nothing of the word {text!r} in this sentence.")


def _still_there(tokens: Ragged, kept: Ragged, places: Ragged, truncate: Truncate) -> tuple[Ragged, Places]:
    """The places of the words whose last token was not cut away, and which of all words they are."""
    marks = np.full(len(tokens.flat), -1, np.int64)                 # of each token: the word that it ends
    marks[np.repeat(tokens.begins, places.lengths) + places.flat - 1] = np.arange(len(places.flat))
    left = Ragged(marks, tokens.ends).kept(kept.lengths, truncate == "ends")
    here = left.flat >= 0
    row = np.repeat(np.arange(len(left)), left.lengths)[here]
    ends = np.cumsum(np.bincount(row, minlength=len(left)))
    columns = (within(left.lengths)[here] + 1).astype(np.int32)
    return Ragged(columns, ends), left.flat[here]


def encode_translated(
    examples: Sequence[Translated],
    tokenizer: Tokenizer,
    limit: int | None,
    truncate: Truncate = "false",
    *,
    source_tokenizer: Tokenizer | None = None,
    source_limit: int | None = None,
) -> Sequences:
    """Texts that become other texts. The source has a tokenizer of its own if one is given."""
    source = encode(source_tokenizer or tokenizer, (example.source for example in examples))
    places = [example.place for example in examples]
    cut, notes = fit([source], source_limit, 1, truncate, places)
    ended = beside([cut[0], alike(BOUNDARY, len(examples))])
    targets, more = _targets(examples, tokenizer, limit, truncate)
    return Sequences(ended, targets, notes + more)


def encode_captioned(
    examples: Sequence[Captioned], tokenizer: Tokenizer, limit: int | None, truncate: Truncate = "false"
) -> Sequences:
    """Vectors that become a text; all are of one width."""
    wide = examples[0].source.shape[1] if examples else 0
    for example in examples:
        if example.source.shape[1] != wide:
            raise UserError(f"{example.place} has vectors of {example.source.shape[1]} numbers; the first has {wide}.")
    source = ragged((example.source for example in examples), np.float32)
    targets, notes = _targets(examples, tokenizer, limit, truncate)
    return Sequences(source, targets, notes)


def _targets(
    examples: Sequence[Translated] | Sequence[Captioned], tokenizer: Tokenizer, limit: int | None, truncate: Truncate
) -> tuple[Ragged, Names]:
    """The first target of each example; nothing where it is not known."""
    texts = encode(tokenizer, ("".join(example.targets[:1]) for example in examples))
    places = [example.place for example in examples]
    fitting, notes = fit([texts], limit, 1, truncate, places)
    return fitting[0], notes


def _id(tokenizer: Tokenizer, name: str) -> int:
    id = tokenizer.id(name)
    if id is None:
        raise ValueError(f"the tokenizer has no {name}; add it by with_special")
    return id

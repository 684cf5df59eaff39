"""Reading tagged text: CoNLL-U, or columns with an empty line between sentences.

Of CoNLL-U only words count: the ranges of contracted words (1-2), empty nodes (1.1) and comments are skipped.
Columns are separated by tabs, or by spaces where the first line has no tab.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from chainrule.errors import UserError, did_you_mean
from chainrule.recipe import Text
from chainrule.tasks.task import Input, Truncate
from chainrule.text.sources import Source
from chainrule.text.tables import Place, numbered_lines

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
FORM = CONLLU.index("form")
UNTAGGED = "_"                 # what CoNLL-U writes where there is no tag

Row: TypeAlias = tuple[int, list[str]]
"""A line's number and its fields."""


@dataclass(frozen=True)
class TagText(Text):
    """`text.*` where every word has a tag."""

    tokenizer: str = "words"        # bytes, characters, words, bpe, or the path of a ready tokenizer.json
    tag: str = "upos"               # of CoNLL-U: upos, xpos, deprel, …; of other columns their number; the last of two
    truncate: Truncate = "false"    # texts longer than the model's context: refuse, keep the beginning, or both ends
    input: Input | None = None      # words, or vectors (frames); none: what the files hold


@dataclass(frozen=True, slots=True)
class Tagged:
    """Words, each with a tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...]                         # empty: not known
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.words

    @property
    def written(self) -> tuple[str, ...]:
        return (" ".join(self.words),)


def read_tagged(source: Source, settings: TagText) -> Iterator[Tagged]:
    """The sentences of a file."""
    columns, found = 0, False
    for rows in _sentences(source, settings.errors):
        columns = columns or len(rows[0][1])
        for number, row in rows:
            if len(row) != columns or columns < 2:
                raise UserError(_wrong_columns(Place(str(source.path), number), len(row), columns))
        place = Place(str(source.path), rows[0][0])
        if example := _sentence(rows, columns, settings, place):
            found = True
            yield example
    if not found:
        raise UserError(f"{source.path} is empty: there are no tagged words in it.")


def _sentences(source: Source, errors: str) -> Iterator[list[Row]]:
    """The fields of the lines of each sentence, without comments."""
    lines = numbered_lines(source, errors)
    first = next((line for _, line in numbered_lines(source, errors) if line.strip() and not line.startswith("#")), "")
    tabs = "\t" in first or not first
    for blank, some in groupby(lines, key=lambda line: not line[1].strip()):
        kept = [line for line in some if not (tabs and line[1].startswith("#") and "\t" not in line[1])]
        if kept and not blank:
            yield [(number, line.rstrip("\r\n").split("\t") if tabs else line.split()) for number, line in kept]


def _sentence(rows: list[Row], columns: int, settings: TagText, place: Place) -> Tagged | None:
    word, tag = _columns(columns, settings.tag, place)
    if columns == len(CONLLU):
        rows = [(number, row) for number, row in rows if row[0].isdecimal()]
    for number, row in rows:
        if not row[word] or row[tag] in ("", UNTAGGED):
            what = f"tag ({settings.tag})" if row[word] else "word"
            raise UserError(f"{place.path} line {number} has no {what}: {' '.join(row[:5])}")
    words, tags = (tuple(row[column] for _, row in rows) for column in (word, tag))
    return Tagged(words, tags, place) if words else None


def _columns(columns: int, tag: str, place: Place) -> tuple[int, int]:
    """Where the word stands, and where its tag."""
    if columns == len(CONLLU):
        if tag.lower() not in CONLLU:
            raise UserError(f"text.tag={tag} is no column of CoNLL-U: {', '.join(CONLLU)}.{did_you_mean(tag, CONLLU)}")
        return FORM, CONLLU.index(tag.lower())
    if tag in (numbers := [str(number) for number in range(2, columns + 1)]):
        return 0, 1 + numbers.index(tag)
    if columns > 2 or tag != TagText.tag:
        raise UserError(f"{place} has {columns} columns, of which the first is the word. "
                        f"Say which one is the tag: text.tag=2 to text.tag={columns}.")
    return 0, 1


def _wrong_columns(place: Place, found: int, before: int) -> str:
    if before < 2:
        return (f"{place} has one column; tagged text has two, a word and its tag, with a tab between. "
                "Did you mean --task classify?")
    return (f"{place} has {found} columns, where the lines before it have {before}. In tagged text each line is a word "
            "and its tag, and an empty line ends a sentence.")

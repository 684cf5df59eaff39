"""Captioning: a text from vectors, such as the features of an image (`--task caption`).

Examples are a table with a column of text and others of numbers, or an array (NPY) and a file with a line for each row.

Shapes: N examples, S vectors each, F numbers in each. A table, and an array (N, F), have one vector each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.recipe import Recipe, Text
from chainrule.tasks.batching import ragged
from chainrule.tasks.examples import gather_examples, held_out_examples
from chainrule.tasks.task import Truncate
from chainrule.tasks.translate import Sequences, WritingTask, encode_targets
from chainrule.text.arrays import is_number, load_array, vector_of
from chainrule.text.sources import Source
from chainrule.text.tables import Place, Table, numbered_lines, read_table, text_in
from chainrule.text.tokenizers.tokenizer import Tokenizer

CAPTIONS = ("caption", "text", "target", "description", "sentence", "title", "label")
PAIR = "Name a table with a column of text, or an array and its lines: features.npy captions.txt"


@dataclass(frozen=True)
class CaptionText(Text):
    """`text.*` where rows of numbers become a text."""

    header: bool = True             # the first line of TSV or CSV names the columns; false: they are named 1, 2, …
    target: str | None = None       # column of the text; None: by its name, or the only one that is not numbers
    truncate: Truncate = "false"    # texts longer than the model's context: refuse, keep the beginning, or both ends


@dataclass(frozen=True, slots=True, eq=False)
class Captioned:
    """Vectors, and the text that describes them."""

    source: NDArray[np.float32]                   # (S, F)
    targets: tuple[str, ...]
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.source.tobytes()

    @property
    def written(self) -> tuple[str, ...]:
        return self.targets


class Caption(WritingTask[Captioned]):
    name, source = "caption", "vectors"
    text = CaptionText
    readable = ("errors", "header", "target")

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        """With `model.source_features`, the numbers in each vector."""
        if recipe.model.source_features is not None:
            return recipe
        first = gather_examples(self.read, texts, recipe.text).splits["train"][0]
        return replace(recipe, model=replace(recipe.model, source_features=first.source.shape[1]))

    def read(self, sources: Sequence[Source], text: CaptionText) -> Iterable[Captioned]:
        return read_captioned(sources, text)

    def read_inputs(self, file: str, text: CaptionText) -> Sequence[Captioned]:
        return held_out_examples(self.read, [file], text)

    def line(self, text: str, place: Place) -> Captioned:
        raise UserError(f"{place} is text; a caption is predicted from vectors: a table of numbers.")

    def encode(
        self, examples: Sequence[Captioned], recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...]
    ) -> Sequences:
        limit = getattr(recipe.model, "context", None)
        return encode_captioned(examples, tokenizer, limit, cast(CaptionText, recipe.text).truncate)


def encode_captioned(
    examples: Sequence[Captioned], tokenizer: Tokenizer, limit: int | None, truncate: Truncate = "false"
) -> Sequences:
    """Vectors that become a text; all are of one width."""
    wide = examples[0].source.shape[1] if examples else 0
    for example in examples:
        if example.source.shape[1] != wide:
            raise UserError(f"{example.place} has vectors of {example.source.shape[1]} numbers; the first has {wide}.")
    source = ragged((example.source for example in examples), np.float32)
    targets, notes = encode_targets(examples, tokenizer, limit, truncate)
    return Sequences(source, targets, notes)


def read_captioned(sources: Sequence[Source], settings: CaptionText) -> Iterator[Captioned]:
    arrays = [source for source in sources if source.path.suffix == ".npy"]
    others = [source for source in sources if source.path.suffix != ".npy"]
    if not arrays:
        for source in sources:
            yield from _rows(read_table(source, settings.errors, settings.header), settings)
    elif len(arrays) == len(others):
        for array, lines in zip(arrays, others):
            yield from _described(array, lines, settings.errors)
    else:
        raise UserError(f"{arrays[0].path} needs a file with a line of text for each of its rows. {PAIR}")


def _rows(table: Table, settings: CaptionText) -> Iterator[Captioned]:
    text = -1
    for line, row in table.rows:
        place = table.place(line)
        text = _text_column(table, row, settings) if text < 0 else text
        numbers = [value for column, value in enumerate(row) if column != text]
        yield Captioned(vector_of(numbers, place)[None], (text_in(row[text], place, "the text"),), place)


def _text_column(table: Table, row: Sequence[str], settings: CaptionText) -> int:
    if settings.target is not None:
        return table.column(settings.target, "text.target")
    known = table.known(CAPTIONS)
    words = known if len(known) == 1 else [column for column, value in enumerate(row) if not is_number(value)]
    if len(words) != 1:
        raise UserError(f"{table.path} has {table.shown}; which one is the text? Choose by text.target=NAME.")
    return words[0]


def _described(array: Source, lines: Source, errors: str) -> Iterator[Captioned]:
    vectors = _load(array)
    number = 0
    for number, line in numbered_lines(lines, errors):
        place = Place(str(lines.path), number)
        if number <= len(vectors):
            source = np.ascontiguousarray(vectors[number - 1], np.float32)
            if not np.isfinite(source).all():
                raise UserError(f"{array.path} has a number that is not finite in row {number}.")
            yield Captioned(source, (text_in(line, place, "the text"),), place)
    if number != len(vectors):
        raise UserError(f"{array.path} has {len(vectors)} rows and {lines.path} has {number} lines; each row has one.")


def _load(source: Source) -> NDArray[np.generic]:
    """(N, S, F), memory-mapped."""
    array = load_array(source, "(N, S, F) or (N, F)")
    return array if array.ndim == 3 else array[:, None]

"""Captioning: a text from a picture, or from vectors such as the features of one (`--task caption`).

Pictures are read as tasks/pictures.py says. Vectors are the numbers of a table beside its column of text, or an array
(NPY) with a text file that has a line for each row. To be captioned, they need no text.

Shapes: N examples, S vectors each, F numbers in each. A table, and an array (N, F), have one vector each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.inference.metrics import measure_exact
from chainrule.recipe import Recipe, Text
from chainrule.settings import Size
from chainrule.tasks.batching import ragged
from chainrule.tasks.example_task import ExampleSplit
from chainrule.tasks.examples import files_of, first_of
from chainrule.tasks.pictures import EncodedPictures, encode_pictures, hold_pictures, read_pictures
from chainrule.tasks.task import Search, Trained, Truncate
from chainrule.tasks.translate import Sequences, WritingTask, encode_targets
from chainrule.text.arrays import (
    is_array,
    is_number,
    load_array,
    refuse_other_count,
    refuse_unpaired,
    split_arrays,
    vector_of,
)
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
    input: Literal["vectors", "pictures"] | None = None  # what a text is written about; none: what the files hold
    resize: tuple[Size, Size] | None = None  # scale pictures to this height and width; none: all have the same


@dataclass(frozen=True, slots=True, eq=False)
class Captioned:
    """Vectors or a picture, and the text that describes them."""

    source: NDArray[Any]                          # (S, F) float32, or a picture (H, W, C) of bytes
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
    readable = ("errors", "header", "target", "resize")

    def complete(self, recipe: Recipe, texts: Sequence[str]) -> Recipe:
        """With `model.picture`, the shape of pictures, or `model.source_features`, the numbers in each vector."""
        text, model = cast(CaptionText, recipe.text), recipe.model
        sources = files_of(texts)["train"]
        pictures = text.input == "pictures" or model.picture is not None or hold_pictures(sources[0], text.errors)
        if text.input == "vectors" or not pictures:
            if model.source_features is not None:
                return recipe
            first = first_of(self.read(sources, text), sources)
            return replace(recipe, model=replace(model, source_features=first.source.shape[1]))
        text = replace(text, input="pictures")
        shape = model.picture or first_of(self.read(sources, text), sources).source.shape
        return replace(recipe, text=text, model=replace(model, picture=tuple(shape)))

    def read(self, sources: Sequence[Source], text: CaptionText) -> Iterable[Captioned]:
        if text.input == "pictures":
            return (Captioned(*read) for read in read_pictures(sources, text))
        return read_captioned(sources, text)

    def read_inputs(self, file: str, text: CaptionText) -> Sequence[Captioned]:
        """Captions are not read: there may be none."""
        found = files_of([file])
        sources = found[next(split for split in ("test", "valid", "train") if split in found)]
        if text.input == "pictures":
            inputs = [source for source in sources if is_array(source)] or sources
            return tuple(Captioned(*read) for read in read_pictures(inputs, text, captions=False))
        return tuple(read_vectors(sources, text))

    def line(self, text: str, place: Place) -> Captioned:
        raise UserError(f"{place} is text; a caption is written about a picture, or vectors: a table of numbers.")

    def measure_split(self, run: Trained, split: ExampleSplit, search: Search) -> dict[str, Any]:
        """As of translations, and the share of captions that are exactly right."""
        texts, references = self.texts_and_references(run, split, search)
        return {**measure_exact(texts, references).as_dict("exact"), **self.measure_texts(texts, references, search)}

    def encode(
        self, examples: Sequence[Captioned], recipe: Recipe, tokenizer: Tokenizer, labels: tuple[str, ...]
    ) -> Sequences | EncodedPictures:
        limit, text = getattr(recipe.model, "context", None), cast(CaptionText, recipe.text)
        if text.input == "pictures":
            return encode_pictures(examples, recipe, *encode_targets(examples, tokenizer, limit, text.truncate))
        return encode_captioned(examples, tokenizer, limit, text.truncate)


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
    arrays, others = split_arrays(sources)
    refuse_unpaired(arrays, others, f"a file with a line of text for each of its rows. {PAIR}")
    for array, lines in zip(arrays, others):
        yield from _described(array, lines, settings.errors)
    for source in [] if arrays else others:
        yield from _rows(read_table(source, settings.errors, settings.header), settings)


def read_vectors(sources: Sequence[Source], settings: CaptionText) -> Iterator[Captioned]:
    """Vectors without their texts."""
    for source in [source for source in sources if is_array(source)] or sources:
        if is_array(source):
            for number, vectors in enumerate(_load(source), 1):
                yield Captioned(_finite(vectors, source, number), (), Place(str(source.path), number))
        else:
            yield from _rows(read_table(source, settings.errors, settings.header), settings, texts=False)


def _rows(table: Table, settings: CaptionText, texts: bool = True) -> Iterator[Captioned]:
    left_out: list[int] | None = None                  # the column of the text; none, where only vectors are read
    for line, row in table.rows:
        place = table.place(line)
        if left_out is None:
            words = [_text_column(table, row, settings)] if texts else _word_columns(table, row, settings)
            left_out = words
        numbers = [value for column, value in enumerate(row) if column not in left_out]
        written = (text_in(row[left_out[0]], place, "the text"),) if texts else ()
        yield Captioned(vector_of(numbers, place)[None], written, place)


def _text_column(table: Table, row: Sequence[str], settings: CaptionText) -> int:
    if settings.target is not None:
        return table.column(settings.target, "text.target")
    words = _word_columns(table, row, settings)
    if len(words) != 1:
        raise UserError(f"{table.path} has {table.shown}; which one is the text? Choose by text.target=NAME.")
    return words[0]


def _word_columns(table: Table, row: Sequence[str], settings: CaptionText) -> list[int]:
    """The column of the text by its name, or all that hold no numbers."""
    known = table.known((settings.target.lower(),) if settings.target else CAPTIONS)
    return known if len(known) == 1 else [column for column, value in enumerate(row) if not is_number(value)]


def _described(array: Source, lines: Source, errors: str) -> Iterator[Captioned]:
    vectors = _load(array)
    number = 0
    for number, line in numbered_lines(lines, errors):
        place = Place(str(lines.path), number)
        if number <= len(vectors):
            source = _finite(vectors[number - 1], array, number)
            yield Captioned(source, (text_in(line, place, "the text"),), place)
    refuse_other_count(array, len(vectors), lines, number, "row")


def _finite(vectors: NDArray[np.generic], source: Source, row: int) -> NDArray[np.float32]:
    numbers = np.ascontiguousarray(vectors, np.float32)
    if not np.isfinite(numbers).all():
        raise UserError(f"{source.path} has a number that is not finite in row {row}.")
    return numbers


def _load(source: Source) -> NDArray[np.generic]:
    """(N, S, F), memory-mapped."""
    array = load_array(source, "(N, S, F) or (N, F)")
    return array if array.ndim == 3 else array[:, None]

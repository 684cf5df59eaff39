"""Frames: sequences of vectors in the place of words, for `--task tag` (a label for each) and `classify` (one for all).

    x1 … xT  ->  a label at each frame, or one          x_t: F numbers, such as a frame of video, sound or a sensor

Files: an array (NPY, sequences x frames x numbers) and a text file with a line of labels for each sequence; JSON lines
{"frames": [[…], …], "labels": […]}; or a table with a row for each frame, in which a column `sequence` says where a new
sequence begins. A table without that column is one sequence.

Shapes: N sequences, T frames, F numbers in a frame, B rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.inference.evaluate import count_parameters
from chainrule.inference.forward import eval_mode
from chainrule.inference.metrics import measure_tags
from chainrule.model import IGNORE, Batch, Model
from chainrule.recipe import Recipe
from chainrule.tasks.batching import Ids, Ragged, RowsWithTargets, ragged, to_tensor, truncate_texts
from chainrule.tasks.example_task import ExampleSplit, evaluation_batches
from chainrule.tasks.examples import Names, files_of, first_of, label_ids
from chainrule.tasks.task import Prediction, Truncate
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
from chainrule.text.tables import TEXT_COLUMNS, Place, Table, format_of, numbered_lines, read_table, text_in

FRAMES = ("frames", "vectors", "features")
LABELS = ("labels", "label", "tags", "tag", "class", "target", "phase")
SEQUENCES = ("sequence", "series", "clip", "video", "session", "id")
NUMBERS = ("frame", "time", "step", "index")        # columns that only number the frames of a sequence
BYTE = 255.0                                        # arrays of bytes are pictures: they are scaled to 0 … 1


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """A sequence of vectors, and its labels: one for each, or one for all."""

    frames: NDArray[np.float32]                   # (T, F)
    tags: tuple[str, ...]                         # empty: not known
    place: Place = field(compare=False)

    @property
    def about(self) -> object:
        return self.frames.tobytes()

    @property
    def written(self) -> tuple[str, ...]:
        return ()

    @property
    def label(self) -> str | None:
        """The one label of the sequence."""
        if len(set(self.tags)) > 1:
            raise UserError(f"{self.place} has {len(self.tags)} labels, which differ; --task classify wants one for a "
                            "sequence. Did you mean --task tag?")
        return self.tags[0] if self.tags else None


def complete_frames(recipe: Recipe, texts: Sequence[str]) -> Recipe:
    """With `text.input=frames` and `model.features`, where the files hold vectors; else the recipe as it is."""
    text: Any = recipe.text
    given = getattr(recipe.model, "features", None)
    if text.input == "text" or (text.input is None and given is None and not _hold_frames(texts, text)):
        if given is not None:
            raise UserError(f"model.features={given} is the dimension of vectors, and text.input=text reads words.")
        return recipe
    if not hasattr(recipe.model, "features"):
        raise UserError(f"{texts[0]} holds vectors, and --kind {recipe.kind} reads words alone. Kinds that read "
                        "vectors: feedforward, rnn, gru, lstm, encoder.")
    if recipe.train.gradients:
        raise UserError("train.gradients follows the embeddings of tokens, and vectors have none. Leave it out.")
    text = replace(text, input="frames", tokenizer="bytes")      # there is no text, so no vocabulary is learned
    sources = files_of(texts)["train"]
    first = first_of(read_frames(sources, text), sources)
    return replace(recipe, text=text, model=replace(recipe.model, features=given or first.frames.shape[1]))


def _hold_frames(texts: Sequence[str], settings: Any) -> bool:
    source = files_of(texts)["train"][0]
    if is_array(source):
        return True
    if format_of(source.path) is None:
        return False
    table = _table(source, settings)
    if table.known(FRAMES):
        return True
    first = next(table.rows, None)
    if first is None or table.known(TEXT_COLUMNS):
        return False
    rest = _number_columns(table, settings)
    return bool(rest) and all(is_number(first[1][column]) for column in rest)


# Reading

def read_frames(sources: Sequence[Source], settings: Any, labels: bool = True) -> Iterator[Frames]:
    """The sequences of some files; without `labels`, they are not read."""
    arrays, others = split_arrays(sources)
    if labels:
        refuse_unpaired(arrays, others, "a text file with a line of labels for each of its sequences. Name both: "
                                        "frames.npy labels.txt")
    for number, array in enumerate(arrays):
        yield from _of_array(array, others[number] if labels else None, settings)
    for source in [] if arrays else others:
        table = _table(source, settings)
        yield from _objects(table, settings, labels) if table.known(FRAMES) else _rows(table, settings, labels)


def _of_array(source: Source, lines: Source | None, settings: Any) -> Iterator[Frames]:
    """An array (N, T, F), or (T, F): one sequence."""
    array = load_array(source)
    sequences = array[None] if array.ndim == 2 else array.reshape(*array.shape[:2], -1)
    written = None if lines is None else [line.split() for _, line in numbered_lines(lines, settings.errors)]
    if written is not None and lines is not None:
        refuse_other_count(source, len(sequences), lines, len(written), "sequence")
    for number, sequence in enumerate(sequences, 1):
        place = Place(str(source.path if lines is None else lines.path), number)
        frames = np.ascontiguousarray(sequence, np.float32) / (BYTE if array.dtype == np.uint8 else 1.0)
        if not np.isfinite(frames).all():
            raise UserError(f"{source.path} has a number that is not finite in sequence {number}.")
        yield _checked(frames.astype(np.float32), () if written is None else written[number - 1], place)


def _objects(table: Table, settings: Any, labels: bool) -> Iterator[Frames]:
    """Each row is a sequence: JSON lines with a list of vectors and a list of labels, or one label."""
    column = table.known(FRAMES)[0]
    label = _label_column(table, settings) if labels else None
    for line, row in table.rows:
        place = table.place(line)
        vectors = row[column]
        if not isinstance(vectors, list) or not vectors:
            raise UserError(f"{place} has no list of vectors in {table.columns[column]}; it is [[1, 2], [3, 4], …].")
        parts = [vector_of(vector if isinstance(vector, list) else [vector], place) for vector in vectors]
        found = [] if label is None else row[label] if isinstance(row[label], list) else [row[label]]
        yield _checked(_stack(parts, place), [text_in(tag, place, "the label") for tag in found], place)


def _rows(table: Table, settings: Any, labels: bool) -> Iterator[Frames]:
    """Each row is a frame, those with the same value in the column `sequence` after each other a sequence."""
    sequence = table.known(SEQUENCES)[:1]
    label = _label_column(table, settings) if labels else None
    columns = _number_columns(table, settings)
    for _, some in groupby(table.rows, key=lambda row: [row[1][column] for column in sequence]):
        rows = list(some)
        places = [table.place(line) for line, _ in rows]
        vectors = [vector_of([row[column] for column in columns], place) for place, (_, row) in zip(places, rows)]
        tags = [] if label is None else [text_in(row[label], place, "the label")
                                         for place, (_, row) in zip(places, rows)]
        yield _checked(_stack(vectors, places[0]), tags, places[0])


def _stack(vectors: Sequence[NDArray[np.float32]], place: Place) -> NDArray[np.float32]:
    wide = len(vectors[0])
    for number, vector in enumerate(vectors, 1):
        if len(vector) != wide:
            raise UserError(f"{place}: frame {number} has {len(vector)} numbers, and the first has {wide}; all frames "
                            "have as many.")
    return np.stack(vectors)


def _checked(frames: NDArray[np.float32], tags: Sequence[str], place: Place) -> Frames:
    if len(tags) not in (0, 1, len(frames)):
        raise UserError(f"{place} has {len(frames)} frames and {len(tags)} labels; each frame has one, or there is one "
                        "for all of them.")
    return Frames(frames, tuple(tags), place)


def _table(source: Source, settings: Any) -> Table:
    """A table; where the first line holds nothing but numbers, it is no header."""
    table = read_table(source, settings.errors)
    if table.columns and all(is_number(name) for name in table.columns):
        return read_table(source, settings.errors, header=False)
    return table


def _given(settings: Any) -> str | None:
    """The column of the label that a setting names."""
    name = getattr(settings, "label", None) if hasattr(settings, "label") else settings.tag
    return None if name == "upos" else name            # the default of TagText, which is for CoNLL-U


def _label_column(table: Table, settings: Any) -> int:
    if (given := _given(settings)) is not None:
        return table.column(given, "text.label" if hasattr(settings, "label") else "text.tag")
    known = table.known(LABELS)
    if len(known) != 1:
        raise UserError(f"{table.path} has {table.shown}; which one is the label? Name one of them `label`.")
    return known[0]


def _number_columns(table: Table, settings: Any) -> list[int]:
    named = [*table.known((*LABELS, *SEQUENCES, *NUMBERS))]
    given = _given(settings)
    return [at for at, name in enumerate(table.columns) if at not in named and name != given]


# Encoded sequences

@dataclass(frozen=True)
class EncodedFrames(RowsWithTargets):
    rows: Ragged                                     # (N, F): all frames of all sequences
    targets: Any                                     # a Ragged of a label for each frame; or Ids, one for each sequence
    notes: tuple[str, ...] = ()

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        each = isinstance(self.targets, Ragged)
        targets = self.targets.padded(rows, widths[0], IGNORE) if each else self.targets[rows]
        frames = self.rows.padded(rows, widths[0])
        return Batch(to_tensor(frames), to_tensor(targets), to_tensor(self.rows.lengths[rows]))


def encode_frames(
    examples: Sequence[Any], recipe: Recipe, labels: Names, *, each: bool
) -> EncodedFrames:
    """`each`: a label for each frame, else one for each sequence."""
    wide = recipe.model.features
    for example in examples:
        if example.frames.shape[1] != wide:
            raise UserError(f"{example.place} has frames of {example.frames.shape[1]} numbers, and this model reads "
                            f"{wide}. Give it frames of {wide} numbers, or train it on these.")
    places, text = [example.place for example in examples], recipe.text
    rows = ragged((example.frames for example in examples), np.float32)
    truncate: Truncate = text.truncate                 # type: ignore[attr-defined]
    (kept,), notes = truncate_texts([rows], getattr(recipe.model, "context", None), 0, truncate, places, "frames")
    if not each:
        return EncodedFrames(kept, label_ids([example.label for example in examples], labels, places, "label"), notes)
    tags = list(chain.from_iterable(_tag_each(example) for example in examples))
    where = [example.place for example in examples for _ in example.frames]
    targets = Ragged(label_ids(tags, labels, where, "label"), rows.ends)
    return EncodedFrames(kept, targets.truncated(kept.lengths, truncate == "ends"), notes)


def _tag_each(example: Frames) -> Sequence[str | None]:
    """A label for each frame; one that stands for all is that of every frame."""
    return example.tags * (len(example.frames) // len(example.tags)) if example.tags else [None] * len(example.frames)


# Labels of frames

@torch.inference_mode()
def frame_logits(model: Model, encoded: EncodedFrames) -> list[NDArray[np.float64]]:
    """(T, C) for each sequence: the outputs y_t of the head at each frame."""
    rows: dict[int, Any] = {}
    with eval_mode(model):
        for ids, batch in evaluation_batches(model, encoded, "tagging"):
            outputs = model(batch).double().cpu().numpy()
            rows |= {number: row[: encoded.rows.lengths[number]] for number, row in zip(ids.tolist(), outputs)}
    return [rows[number] for number in range(len(encoded))]


def measure_frames(model: Model, split: ExampleSplit, labels: Sequence[str]) -> dict[str, Any]:
    """Accuracy and F1 of frames; the bootstrap draws sequences."""
    encoded = split.encoded
    predicted = [outputs.argmax(-1) for outputs in frame_logits(model, encoded)]
    facts = measure_tags(list(encoded.targets), predicted, labels).as_dict()
    renamed = {"words": "frames", "sentences": "sequences"}
    kept = {renamed.get(name, name): fact for name, fact in facts.items() if fact is not None}
    return kept | {"parameters": count_parameters(model)}


def frame_answers(model: Model, encoded: EncodedFrames, labels: Sequence[str]) -> list[Prediction]:
    """The label of each frame, and the outputs behind it; a model without labels answers with its output y_t."""
    return [
        {"answer": " ".join(_answer(output, labels) for output in outputs), "outputs": outputs.tolist(),
         **({"probabilities": softmax(outputs).tolist()} if labels else {})}
        for outputs in frame_logits(model, encoded)
    ]


def softmax(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """(T, C) -> (T, C)"""
    powers = np.exp(outputs - outputs.max(-1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(-1, keepdims=True)
    return shares


def _answer(output: NDArray[np.float64], labels: Sequence[str]) -> str:
    return labels[int(output.argmax())] if labels else ",".join(f"{value:.4g}" for value in output)

"""Pictures that get a caption: read from files that a table names, or from an array; encoded as bytes.

    a table (CSV, TSV, JSON lines) with a column `path`, and one of captions      paths are relative to the table
    an array (NPY) of pictures, and a text file with a caption on each line       (N, H, W) gray, or (N, H, W, C)

To be captioned, a table without captions, an array alone, or picture files.

Shapes: N pictures, H x W pixels, C channels, S places of the feature map.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.layers.pictures import map_size
from chainrule.model import Batch
from chainrule.recipe import Recipe
from chainrule.tasks.batching import Ids, Ragged, TargetTexts
from chainrule.text.arrays import is_array, load_array, refuse_other_count, refuse_unpaired, split_arrays
from chainrule.text.pictures import Pixels, is_picture, read_picture, resize
from chainrule.text.sources import Source
from chainrule.text.tables import Place, Table, format_of, numbered_lines, read_table, text_in

PATHS = ("path", "picture", "image", "file", "filename", "file_name")


def hold_pictures(source: Source, errors: str) -> bool:
    """Whether a file is a picture, an array of bytes in two dimensions or more each, or a table of paths."""
    if is_picture(source.path):
        return True
    if is_array(source):
        array = load_array(source)
        return array.ndim > 3 or (array.ndim == 3 and array.dtype == np.uint8)
    return format_of(source.path) is not None and len(read_table(source, errors).known(PATHS)) == 1


Read = tuple[Pixels, tuple[str, ...], Place]
"""A picture (H, W, C), its captions, and where it was read."""


def read_pictures(sources: Sequence[Source], settings: Any, captions: bool = True) -> Iterator[Read]:
    """Pictures with their captions; without `captions` these are not read."""
    arrays, others = split_arrays(sources)
    if captions:
        refuse_unpaired(arrays, others, "a text file with a caption for each of its pictures. Name both: pictures.npy "
                                        "captions.txt")
    for number, array in enumerate(arrays):
        yield from _of_array(array, others[number] if captions else None, settings)
    for source in [] if arrays else others:
        if is_picture(source.path):
            if captions:
                raise UserError(f"{source.path} has no caption. Name a table with a column of paths and one of "
                                "captions.")
            yield _scaled(read_picture(source.path), settings), (), Place(str(source.path), 1)
        else:
            yield from _of_table(read_table(source, settings.errors, settings.header), settings, captions)


def _of_array(source: Source, lines: Source | None, settings: Any) -> Iterator[Read]:
    array = load_array(source, "(N, H, W), (N, H, W, C) or (N, frames, H, W, C)", 3)
    if array.dtype != np.uint8 or array.ndim > 5:
        raise UserError(f"{source.path} is an array {array.shape} of {array.dtype}; pictures are bytes (uint8), (N, H, "
                        "W) or (N, H, W, C).")
    pictures = array[..., None] if array.ndim == 3 else array
    texts = None if lines is None else [line for _, line in numbered_lines(lines, settings.errors)]
    if texts is not None and lines is not None:
        refuse_other_count(source, len(pictures), lines, len(texts), "picture")
    for number, picture in enumerate(pictures, 1):
        place = Place(str(source.path if lines is None else lines.path), number)
        written = () if texts is None else (text_in(texts[number - 1], place, "the caption"),)
        yield np.asarray(picture, np.uint8), written, place


def _of_table(table: Table, settings: Any, captions: bool) -> Iterator[Read]:
    paths = table.known(PATHS)
    if len(paths) != 1:
        raise UserError(f"{table.path} has {table.shown}; none of them is `path`, the file of a picture.")
    caption = _caption_column(table, settings, paths[0]) if captions else None
    for line, row in table.rows:
        place = table.place(line)
        path = Path(text_in(row[paths[0]], place, "the path of a picture"))
        try:
            picture = _scaled(read_picture(table.path.parent / path), settings)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        several = [] if caption is None else row[caption] if isinstance(row[caption], list) else [row[caption]]
        yield picture, tuple(text_in(text, place, "the caption") for text in several), place


def _caption_column(table: Table, settings: Any, path: int) -> int:
    from chainrule.tasks.caption import CAPTIONS

    if settings.target is not None:
        return table.column(settings.target, "text.target")
    known = [at for at in table.known(CAPTIONS) if at != path]
    rest = known if len(known) == 1 else [at for at in range(len(table.columns)) if at != path]
    if len(rest) != 1:
        raise UserError(f"{table.path} has {table.shown}; which one is the caption? Choose by text.target=NAME.")
    return rest[0]


def _scaled(picture: Pixels, settings: Any) -> Pixels:
    return picture if settings.resize is None else resize(picture, *settings.resize)


@dataclass(frozen=True)
class EncodedPictures(TargetTexts):
    """Pictures, and their captions as tokens."""

    pictures: NDArray[np.uint8]                      # (N, H, W, C)
    places: int                                      # S, which counts as the length of a source
    targets: Ragged                                  # tokens without boundaries
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pictures)

    @property
    def sizes(self) -> tuple[Ids, ...]:
        return self.targets.lengths + 1, np.full(len(self), self.places, np.int64)

    def batch(self, rows: Ids, widths: Sequence[int]) -> Batch:
        return Batch(*self.teacher_forced(rows, widths[0]), source=torch.from_numpy(self.pictures[rows]))


def encode_pictures(
    examples: Sequence[Any], recipe: Recipe, targets: Ragged, notes: tuple[str, ...]
) -> EncodedPictures:
    """`targets`: the tokens of the captions. All pictures have the shape that the model reads."""
    expected = tuple(recipe.model.picture)
    for example in examples:
        if example.source.shape != expected:
            got, wanted = (" x ".join(map(str, shape)) for shape in (example.source.shape, expected))
            cure = f" text.resize={expected[0]},{expected[1]} scales pictures." if example.source.ndim == 3 else ""
            raise UserError(f"{example.place} has a picture of {got}; this model reads {wanted}, height x width x "
                            f"channels.{cure}")
    pictures = np.stack([example.source for example in examples])
    return EncodedPictures(pictures, map_size(expected, recipe.model.convolutions), targets, notes)

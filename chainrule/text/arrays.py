"""Arrays of numbers from files: NPY, and vectors from the fields of a table."""

from collections.abc import Sequence
from tokenize import TokenError
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import UserError
from chainrule.text.sources import Source
from chainrule.text.tables import Place


def is_array(source: Source) -> bool:
    return source.path.suffix == ".npy"


def load_array(source: Source, shapes: str = "(N, T, F) or (T, F)", least: int = 2) -> NDArray[np.generic]:
    """Of at least so many dimensions, memory-mapped; `shapes`: those that are expected, for a message."""
    try:
        array: NDArray[np.generic] = np.load(source.path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, TokenError, BadZipFile) as error:    # of a header, or of NPZ
        raise UserError(f"{source.path} is not an NPY file of numbers: {str(error)[:100]}.") from None
    if array.dtype.kind not in "fiub" or array.ndim < least or 0 in array.shape:
        raise UserError(f"{source.path} is an array {array.shape} of {array.dtype}; it should be {shapes}.")
    return array


def split_arrays(sources: Sequence[Source]) -> tuple[list[Source], list[Source]]:
    """Those that are arrays, and the others."""
    arrays = [source for source in sources if is_array(source)]
    return arrays, [source for source in sources if not is_array(source)]


def refuse_unpaired(arrays: Sequence[Source], others: Sequence[Source], needs: str) -> None:
    """Each array has one of the other files, with a line for each of its entries; `needs`: which, for a message."""
    if arrays and len(arrays) != len(others):
        raise UserError(f"{arrays[0].path} needs {needs}")


def refuse_other_count(array: Source, entries: int, lines: Source, count: int, entry: str) -> None:
    if entries != count:
        raise UserError(f"{array.path} has {entries} {entry}s and {lines.path} has {count} lines; each {entry} has "
                        "one.")


def is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def vector_of(values: Sequence[object], place: Place) -> NDArray[np.float32]:
    """(F,)"""
    try:
        vector = np.array(values, np.float32)
    except (ValueError, TypeError, OverflowError):
        wrong = next((value for value in values if not is_number(value)), values)
        raise UserError(f"{place} has {str(wrong)[:40]!r} where a number should be.") from None
    if not np.isfinite(vector).all():
        raise UserError(f"{place} has a number that is not finite.")
    return vector

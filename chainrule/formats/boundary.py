"""BOS and EOS of imported models: import moves their rows to row 0, the boundary, and export moves them back.

The boundary, id 0, begins a text as their BOS and ends it as their EOS. So row 0 of the embedding is that of BOS and
row 0 of the output that of EOS; the rows that were there take their places. In tokenizer.json id 0 and that of BOS
change places. `source` in recipe.json keeps both ids, so that exported files have them as the first ones did.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from chainrule.model import BOUNDARY
from chainrule.models.gpt import GPT
from chainrule.run import Run


@dataclass(frozen=True)
class Ends:
    """The ids, in the files of other programs, of the tokens that begin and end a text."""

    begin: int = BOUNDARY    # BOS
    end: int = BOUNDARY      # EOS

    def as_source(self) -> dict[str, Any]:
        """For `source` in recipe.json."""
        return {"boundary": asdict(self)}


NOT_MOVED = Ends()


def ends_of(run: Run) -> Ends:
    """Those of the files that a run, or its base, was imported from; of any other run both are id 0."""
    source: Mapping[str, Any] = run.about.get("source", {})
    return Ends(**source.get("boundary", {}))


def move_boundary(model: GPT, ends: Ends) -> None:
    """Row 0 of the embedding becomes that of their BOS, and row 0 of the output that of their EOS."""
    for matrix, row in _swaps(model, ends):
        swap_rows(matrix, BOUNDARY, row)


@contextmanager
def original_rows(model: GPT, ends: Ends) -> Iterator[bool]:
    """Within the block all rows are in their first places. Gives whether the output is the embedding (tied)."""
    for matrix, row in reversed(_swaps(model, ends)):
        swap_rows(matrix, BOUNDARY, row)
    try:
        yield model.output is None or torch.equal(model.output.weight, model.embeddings)
    finally:
        move_boundary(model, ends)


def _swaps(model: GPT, ends: Ends) -> list[tuple[Tensor, int]]:
    """Matrices, and the row of each that changes places with row 0, one after the other."""
    begin, end = ends.begin, ends.end
    swaps = [(model.embeddings, begin)]
    if model.output is not None:
        swaps.append((model.output.weight, begin))
        if begin != end:
            swaps.append((model.output.weight, begin if end == BOUNDARY else end))
    return swaps


@torch.no_grad()
def swap_rows(matrix: Tensor, one: int, other: int) -> None:
    matrix[[one, other]] = matrix[[other, one]]

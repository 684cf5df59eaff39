"""Exams: tests of language models with published results, by name: BLiMP and LAMBADA.

An exam works on every kind of language model, through the protocol. It answers with plain values for JSON and a
signature that says how they were measured.
"""

from collections.abc import Callable, Mapping
from typing import Any

from chainrule.errors import UserError
from chainrule.exams.blimp import examine_pairs
from chainrule.exams.lambada import examine_passages
from chainrule.run import Run

EXAMS: Mapping[str, Callable[[Run, int | None], dict[str, Any]]] = {
    "blimp": examine_pairs,
    "lambada": examine_passages,
}


def take_exam(run: Run, name: str, limit: int | None = None) -> dict[str, Any]:
    """The result of a run. `limit`: only so many examples, of BLiMP in each paradigm."""
    if name not in EXAMS:
        raise UserError(f"unknown exam {name}. Known: {', '.join(EXAMS)}.")
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit}: ask for 1 or more examples.")
    return EXAMS[name](run, limit)

"""Models that write about a source: the line that they read, and what they make of it, as tokens for a view.

Shapes: S source tokens, their end among them.
"""

import numpy as np

from chainrule.inference.forward import on_device
from chainrule.model import BOUNDARY, LanguageModel
from chainrule.viewer.subject import Reading, Subject

TASKS = ("translate", "span")    # those whose source is a text


def writes_about_text(subject: Subject) -> bool:
    return isinstance(subject.model, LanguageModel) and subject.run.recipe.task in TASKS


def first_line(text: str) -> str:
    """A source is a line; of several the first that is not empty."""
    return next((line for line in text.splitlines() if line.strip()), "").strip()


def read_source(subject: Subject, text: str, limit: int) -> Reading:
    """`x1 … xm 0`, as it was learned; of a long line the beginning."""
    ids = subject.run.tokenizer.encode(first_line(text))
    kept = ids[: min(limit, getattr(subject.model, "context", None) or limit) - 1]
    tokens = np.append(kept, BOUNDARY).astype(np.int64)
    return Reading(on_device(subject.model, tokens[None]), subject.show(tokens.tolist()), len(ids) - len(kept))

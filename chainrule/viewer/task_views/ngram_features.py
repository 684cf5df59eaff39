"""The n-grams of a log-linear classifier as views show them: their tokens, and their weights for a class.

    Δ_{f,c} = θ_{f,c} − mean of θ_{f,c'} over the other classes

A softmax does not change where all classes get the same, so only such differences mean something. With two classes Δ is
what the n-gram adds to the log-odds, log p(c | x) / p(other | x).

Shapes: F features, C classes.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from chainrule.model import BOUNDARY
from chainrule.tasks.classify import DELIMITER, EXTRACT
from chainrule.viewer.subject import Subject

BEGIN, BETWEEN, END = "‹", "‖", "›"    # of a text, and between two texts


def is_log_linear(subject: Subject) -> bool:
    """Whether its model has a weight for each n-gram and class."""
    return subject.classifies and hasattr(subject.model, "log_count_ratios")


def against_others(weights: Tensor) -> Tensor:
    """(F, C) θ -> (F, C) Δ"""
    classes = weights.shape[-1]
    return (weights * classes - weights.sum(-1, keepdim=True)) / max(1, classes - 1)


def shown(subject: Subject, tokens: Sequence[int]) -> list[str]:
    """Tokens for people; those that are no text by a mark."""
    tokenizer = subject.run.tokenizer
    marks = {BOUNDARY: BEGIN, tokenizer.id(DELIMITER): BETWEEN, tokenizer.id(EXTRACT): END}
    return [marks.get(token) or subject.run.tokenizer.show(token) for token in tokens]


def named(subject: Subject, tokens: Sequence[int]) -> str:
    """An n-gram in words."""
    return (" " if subject.run.tokenizer.lines else "").join(shown(subject, tokens))


def described(subject: Subject, feature: int) -> dict[str, Any]:
    """An n-gram: its name, its order, and how many training texts of each class have it."""
    tokens = subject.model.ngram(feature)
    return {"name": named(subject, tokens), "order": len(tokens), "counts": subject.model.counts[feature].tolist()}

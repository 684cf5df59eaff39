"""Surprise: a text whose tokens are coloured by the bits they cost each model, and where two models differ.

Every model has read all of the text that is shown before a token, or as much of it as it can hold.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chainrule.inference.excerpt import pieces_with_bits
from chainrule.inference.score import score_stream
from chainrule.model import BOUNDARY
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View

LETTERS = 6000     # characters of the text, its end


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    names = [subject.name for subject in subjects]
    return {
        "strips": [strip(subject, text[-LETTERS:]) for subject in subjects],
        "first": (names + names)[:2],
        "left_out": max(0, len(text) - LETTERS),
        "left_out_of": "characters",
    }


def strip(subject: Subject, text: str) -> dict[str, Any]:
    """What the tokens spell, with their bits; what a model holds for impossible is null, for JSON has no infinity."""
    tokenizer = subject.run.tokenizer
    tokens = np.concatenate([[BOUNDARY], tokenizer.encode(text)]).astype(np.int64)
    bits = score_stream(subject.model, tokens) / math.log(2)
    spelled = pieces_with_bits(tokenizer, tokens[1:].tolist(), bits)
    finite = [[piece, cost if math.isfinite(cost) else None] for piece, cost in spelled]
    return {"kind": subject.name, "begin": 0, "pieces": finite, "lossy": not tokenizer.lossless}


VIEW = View(
    "surprise", "Surprise",
    "Each token coloured by its bits, −log₂ p: how much a model that had read all before it was surprised.",
    lambda subject: subject.speaks, make, several=True,
)

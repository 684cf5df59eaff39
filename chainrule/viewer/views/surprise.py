"""Surprise: the bits of every token, -log₂ p, by each model, their totals, and where two models differ.

A model predicts each token from all of the shown text before it, or from as much as its context holds. The text is not
ended, so its totals have no token for its end. Bits per byte compare any two models whose tokens give the text back;
the perplexity is of a model's own tokens.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chainrule.inference.score import score_stream
from chainrule.inference.statistics import Bits
from chainrule.inference.text_score import TextTotals, pieces_with_bits
from chainrule.model import BOUNDARY
from chainrule.text.tokenizers.tokenizer import Tokenizer
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.task_bits import fits, task_pieces
from chainrule.viewer.views import Options, View

LETTERS = 6000     # characters at the end of the text
SIDE_BY_SIDE = 6   # models that are all shown at once


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subjects = [part for subject in subjects for part in subject.of_classes]
    names, said = [subject.name for subject in subjects], dict[str, Any]()
    strips = [text_with_bits(subject, text[-LETTERS:], said) for subject in subjects]
    return {
        "strips": strips,
        "first": names if len(names) <= SIDE_BY_SIDE else names[:2],
        "left_out": max(0, len(text) - LETTERS),
        "left_out_of": "characters",
    } | ({"input": said} if said else {})


def text_with_bits(subject: Subject, text: str, said: dict[str, Any]) -> dict[str, Any]:
    """The text of each token with its bits; those of an impossible one are null, since JSON has no infinity.

    `said` is filled with what the page says above, where bits are of something else than the next token.
    """
    tokenizer = subject.run.tokenizer
    if not subject.continues_text:
        spelled, more = task_pieces(subject, text)
        said |= more
        totals = {}
    else:
        tokens = np.concatenate([[BOUNDARY], tokenizer.encode(text)]).astype(np.int64)
        bits = score_stream(subject.model, tokens) / math.log(2)
        spelled = pieces_with_bits(tokenizer, tokens[1:].tolist(), bits)
        totals = {"totals": _totals(bits, text, tokenizer)}
    finite = [[piece, cost if math.isfinite(cost) else None] for piece, cost in spelled]
    return {"kind": subject.name, "begin": 0, "pieces": finite, "lossy": not tokenizer.lossless, **totals}


def _totals(bits: Bits, text: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """`tokenizer`: models with the same one can be compared by bits, even if their tokens do not give the text back."""
    score = TextTotals(float(bits.sum()), len(bits), len(text.encode()), tokenizer.lossless)
    return {"tokens": len(bits), "bits": score.total_bits, "bits_per_byte": score.bits_per_byte,
            "perplexity": score.perplexity if len(bits) else None, "tokenizer": tokenizer.sha256[:12]}


VIEW = View(
    "surprise", "Surprise",
    "Each token is coloured by its bits, −log₂ p: how much it surprised a model that had read all before it. The model "
    "with the fewest bits predicts the text best.",
    lambda subject: subject.of_classes[0].continues_text or fits(subject), _make, several=True,
    needs="a model that predicts tokens or tags",
)

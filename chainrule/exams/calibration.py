"""Calibration of labels: a model's preference for a label's word, measured without a text and taken away.

    contextual (Zhao et al. 2021)    log p(y | shots, x) - log mean over e of p(y | shots, e)     e: N/A, [MASK], empty
    pmi (Holtzman et al. 2021)       log p(y | shots, x) - log p(y | domain)     domain: the end of the template alone

The probabilities of the first mean are normalised over the labels.
A word that the model likes anyway ("positive" more than "negative") gains nothing by it.

Shapes: N questions, M inputs without content, C labels.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]

CONTENT_FREE = ("N/A", "[MASK]", "")
METHODS: Mapping[str, str] = {
    "none": "log p of the label's word, as it is",
    "contextual": "minus that with no content in the place of the text",
    "pmi": "minus that after the end of the template alone",
}
NORMALISATIONS = ("none", "tokens", "bytes")


def log_normalised(scores: Scores) -> Scores:
    """(…, C): log of the probabilities among the labels; -inf where all labels have probability 0."""
    best = scores.max(-1, keepdims=True)
    shifted = np.exp(scores - np.where(np.isfinite(best), best, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p: Scores = np.where(np.isfinite(best), np.log(shifted / shifted.sum(-1, keepdims=True)), -np.inf)
    return log_p


def contextual_baseline(content_free: Scores) -> Scores:
    """(M, C) -> (C,): log of the mean probability of each label where the text has no content."""
    with np.errstate(divide="ignore"):
        mean: Scores = np.log(np.exp(log_normalised(content_free)).mean(0))
    return mean


def calibrate(scores: Scores, baseline: Scores) -> Scores:
    """(N, C), (C,): a label that the baseline gives probability 0 cannot be corrected and stays impossible."""
    possible = np.isfinite(baseline)
    return np.where(possible, scores - np.where(possible, baseline, 0.0), -np.inf)

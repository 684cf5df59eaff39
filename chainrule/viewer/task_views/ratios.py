"""Naive Bayes and the fit: the log-count ratio of each n-gram beside the weight that it got.

    r_{f,c}                         naive Bayes: what the n-gram would add if n-grams were independent
    θ_{f,c} = r_{f,c} w_{f,c}       after the fit: w is how far naive Bayes is to be trusted about it

N-grams of the same words say the same thing several times; the fit shares one weight among them.

Shapes: F features, C classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.ngram_features import described, is_log_linear
from chainrule.viewer.views import Options, View

EXTREME = 40        # n-grams with the largest weights of a class, and with the largest ratios
FREQUENT = 40       # and those that most texts have
CLASSES = 6


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject, model = subjects[0], subjects[0].model
    chosen = chosen_features(model.weights, model.log_count_ratios, model.counts)
    return {
        "name": subject.name, "classes": list(subject.run.labels)[:CLASSES],
        "ngrams": [described(subject, feature) for feature in chosen.tolist()],
        "weights": pack_array(model.weights[chosen]), "ratios": pack_array(model.log_count_ratios[chosen]),     # (M, C)
        "trusted": _trusted(model.weights, model.log_count_ratios), "count": len(model.weights),
    }


def chosen_features(weights: Tensor, ratios: Tensor, counts: Tensor) -> Tensor:
    """(M,) the n-grams that are drawn: extreme ones of each class, and frequent ones."""
    columns = [counts.sum(1)]
    for number in range(min(CLASSES, weights.shape[1])):
        columns += [weights[:, number].abs(), ratios[:, number].abs() * counts.sum(1)]
    most = [FREQUENT, *[EXTREME] * (len(columns) - 1)]
    found = [column.topk(min(size, len(column))).indices for column, size in zip(columns, most, strict=True)]
    return torch.tensor(sorted({feature for some in found for feature in some.tolist()}), dtype=torch.long)


def _trusted(weights: Tensor, ratios: Tensor) -> list[float]:
    """For each class, the slope of θ on r over all n-grams: Σ r θ / Σ r²."""
    slopes = (weights * ratios).double().sum(0) / ratios.double().square().sum(0).clamp(min=1e-30)
    return [float(slope) for slope in slopes.tolist()]


VIEW = View(
    "ratios", "Naive Bayes and the fit",
    "Each point is an n-gram: across, the log-count ratio, which is its weight in naive Bayes; up, its fitted weight. "
    "Where n-grams repeat each other the fit trusts each of them less.",
    is_log_linear, _make, reads=False, needs="a log-linear classifier (--kind loglinear)",
)

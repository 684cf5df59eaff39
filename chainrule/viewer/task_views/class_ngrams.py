"""The heaviest n-grams of each class of a log-linear classifier, for the class and against it.

    Δ_{f,c} = θ_{f,c} − mean of θ_{f,c'} over the other classes

Shapes: F features, C classes.
"""

from collections.abc import Sequence
from typing import Any

import torch

from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.ngram_features import against_others, described, is_log_linear
from chainrule.viewer.views import Options, View

HEAVIEST = 20       # n-grams of a class and of each order, for it and against it
CLASSES = 12        # classes that are shown
EVERY = 0           # in the place of an order: all of them


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    labels, lists = subject.run.labels[:CLASSES], heaviest(subject)
    found = sorted({feature for by_class in lists.values() for pair in by_class for some in pair for feature in some})
    weights, ratios = against_others(subject.model.weights[found]), subject.model.log_count_ratios[found]
    rows = [described(subject, feature) | {"weights": weights[place].tolist(), "ratios": ratios[place].tolist()}
            for place, feature in enumerate(found)]
    place_of = {feature: place for place, feature in enumerate(found)}
    return {
        "name": subject.name, "classes": list(subject.run.labels), "shown": len(labels), "rows": rows,
        "bias": against_others(subject.model.bias[None])[0].tolist(), "count": len(subject.model.weights),
        "l2": float(f"{float(subject.model.l2):.3g}"), "alpha": subject.model.settings.alpha,
        "lists": {order: [[[place_of[feature] for feature in some] for some in pair] for pair in by_class]
                  for order, by_class in lists.items()},
    }


def heaviest(subject: Subject) -> dict[int, list[tuple[list[int], list[int]]]]:
    """For each order, and for all together, of each class the features most for it and most against it."""
    sizes, weights = [len(table) for table in subject.model.tables], against_others(subject.model.weights)
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    parts = {EVERY: (0, ends[-1])} | {order: (ends[order - 1], ends[order]) for order in range(1, len(ends))}
    return {
        order: [(_top(weights[begin:end, number], begin), _top(-weights[begin:end, number], begin))
                for number in range(min(CLASSES, weights.shape[1]))]
        for order, (begin, end) in parts.items() if end > begin
    }


def _top(weights: torch.Tensor, begin: int) -> list[int]:
    """The features with the largest of the weights above zero."""
    values, places = weights.topk(min(HEAVIEST, len(weights)))
    return [begin + place for value, place in zip(values.tolist(), places.tolist()) if value > 0]


VIEW = View(
    "class_ngrams", "Heaviest n-grams",
    "The n-grams that speak most for each class and most against it: the fitted weight, against the mean of the other "
    "classes; in how many training texts of each class it is; and the log-count ratio of naive Bayes. ‹ and › are the "
    "beginning and the end of a text.",
    is_log_linear, _make, reads=False, needs="a log-linear classifier (--kind loglinear)",
)

"""The decision about a text, n-gram by n-gram: what each adds for a class, and how p(class) grows with the order.

    b_c − mean of b_{c'} + Σ_f x_f Δ_{f,c},     Δ_{f,c} = θ_{f,c} − mean of θ_{f,c'} over the other classes

The colour of a token is its share of the n-grams that it is in: each is spread evenly over the tokens of all places
where it occurs, so that the tokens together come to the sum.

Shapes: T tokens, M n-grams of the text, C classes, K orders.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.viewer.page import pack_array
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.ngram_features import against_others, described, is_log_linear, shown
from chainrule.viewer.task_views.tagged_words import cut_note
from chainrule.viewer.task_views.votes import padded, read_row
from chainrule.viewer.views import Options, View

HEAVIEST = 60       # n-grams that are listed, those with the largest weights


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    row = read_row(subject, text)
    features, places = ngrams_of(subject, row.ids)
    weights = against_others(subject.model.weights[features])                     # (M, C)
    order = weights.abs().amax(1).argsort(descending=True, stable=True)[:HEAVIEST].tolist() if len(features) else []
    naive = subject.model.log_count_ratios[features]
    return {
        "name": subject.name, "classes": list(subject.run.labels), "truth": row.truth,
        "tokens": shown(subject, row.ids), "text": row.text, "apart": subject.run.tokenizer.lines,
        "bias": against_others(subject.model.bias[None])[0].tolist(),
        "shares": pack_array(token_shares(weights, places, len(row.ids))),        # (T, C)
        "orders": pack_array(log_probs_by_order(subject, features)),              # (K + 1, C), first of the bias alone
        "count": len(features), "sum": weights.sum(0).tolist(),
        "ngrams": [described(subject, int(features[place])) | {
            "weights": weights[place].tolist(), "ratios": naive[place].tolist(), "places": places[place]}
            for place in order],
    } | cut_note(row.left_out, "tokens")


def ngrams_of(subject: Subject, ids: Sequence[int]) -> tuple[Tensor, list[list[list[int]]]]:
    """(M,) the features of a text, each once; and of each the places where it occurs, first and last token."""
    found = subject.model.find(padded([ids]))
    places: dict[int, list[list[int]]] = {}
    for end, order, feature in zip(found.ends.tolist(), found.orders.tolist(), found.features.tolist(), strict=True):
        places.setdefault(feature, []).append([end - order + 1, end])
    return torch.tensor(sorted(places), dtype=torch.long), [places[feature] for feature in sorted(places)]


def token_shares(weights: Tensor, places: Sequence[Sequence[Sequence[int]]], length: int) -> Tensor:
    """(T, C): the weights of the n-grams, spread over their tokens."""
    shares = weights.new_zeros(length, weights.shape[1])
    for weight, spots in zip(weights, places, strict=True):
        each = weight / sum(end - begin + 1 for begin, end in spots)
        for begin, end in spots:
            shares[begin : end + 1] += each
    return shares


def log_probs_by_order(subject: Subject, features: Tensor) -> Tensor:
    """(K + 1, C): log p(class) by the bias alone, by single tokens too, by pairs too, …"""
    model, sums, end = subject.model, [subject.model.bias], 0
    for table in model.tables:
        here = features[(features >= end) & (features < end + len(table))]
        sums.append(sums[-1] + model.weights[here].sum(0))
        end += len(table)
    return torch.stack(sums).double().log_softmax(1)


VIEW = View(
    "contributions", "Contributions",
    "What each n-gram of the text adds for a class, against the mean of the other classes, and each token's share of "
    "it; and p(class) by the bias alone, with single tokens, with pairs, and so on. ‹ and › are the beginning "
    "and the end of the text.",
    is_log_linear, _make, needs="a log-linear classifier (--kind loglinear)",
)

"""Back-off of an n-gram model: for each token of a text the counts, back-off weight and probability of every order.

    kneser-ney    p(w | h) = (c(hw) - D) / c(h·) + γ(h) p(w | h')
    mle           p(w | h) = c(hw) / c(h·)
    add-k         p(w | h) = (c(hw) + k) / (c(h·) + kV)

h' is h without its first token; below unigrams lies the uniform 1 / V. An order whose context was never seen takes the
probability of the order below. Every order has the name of its formula and the numbers in it.
"""

import math
from collections.abc import Sequence
from typing import Any

from chainrule.model import BOUNDARY
from chainrule.models.ngram.ngram import NGram
from chainrule.models.ngram.smoothing import BackoffStep
from chainrule.viewer.subject import Subject
from chainrule.viewer.task_views.class_models import choose_class
from chainrule.viewer.views import Options, View

LIMIT = 301     # tokens that are shown, including the boundary before the first


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject, more = choose_class(subjects[0], text, options)
    model, read = subject.model, subject.read(text, LIMIT)
    tokens = read.tokens[0]
    ladders = _ladders(model, model.backoff(tokens), tokens.tolist())
    return {
        "name": subject.name,
        "estimator": model.settings.estimator,
        "k": model.settings.k,
        "order": model.order,
        "vocab": model.vocab,
        "unit": subject.unit,
        "left_out": read.left_out,
        "shown": read.shown,
        "tokens": [_token(model, ladder) for ladder in ladders],
    } | more


def _ladders(model: NGram, steps: Sequence[BackoffStep], tokens: Sequence[int]) -> list[list[dict[str, Any]]]:
    """For each token but the first boundary, its orders from the highest whose context it has."""
    ladders = []
    for place in range(1, len(tokens)):
        since = place - _last_boundary(tokens, place)                 # tokens before it, including its boundary
        orders = [_order(model, step, place - 1, whole=step.order in (model.order, since + 1)) for step in steps]
        ladders.append(orders[since::-1] if since < len(orders) else orders[::-1])
    return ladders


def _last_boundary(tokens: Sequence[int], place: int) -> int:
    return next(at for at in range(place - 1, -1, -1) if tokens[at] == BOUNDARY)


def _order(model: NGram, step: BackoffStep, place: int, whole: bool) -> dict[str, Any]:
    """`whole`: its counts are numbers of occurrences, not of distinct contexts as in lower orders of Kneser-Ney."""
    facts: dict[str, Any] = {
        "order": step.order,
        "found": bool(step.found[place]),
        "weight": float(step.weight[place]),
        "p": float(step.probability[place]),
        "whole": whole,
    }
    if step.counts is not None:
        facts |= {
            "count": int(step.counts.ngram[place]),
            "total": int(step.counts.total[place]),
            "kinds": step.counts.types[place].tolist(),
            "discounts": list(step.counts.discounts),
        }
    return facts | {"by": _formula(model.settings.estimator, facts)}


def _formula(estimator: str, order: dict[str, Any]) -> str:
    """The name of the formula that gives an order's probability."""
    if "count" not in order:
        return "table" if order["found"] else "weighted"
    if order["total"] == 0:
        return "below"                                               # of unigrams too: there are no counts
    if estimator == "add-k" and not order["whole"]:
        return "uniform"
    return {"kneser-ney": "discounted", "mle": "counted", "add-k": "added"}[estimator]


def _token(model: NGram, orders: list[dict[str, Any]]) -> dict[str, Any]:
    _add_shares(orders)
    p, lowest = orders[0]["p"], orders[-1]
    seen = [order["order"] for order in orders if order["found"] and order.get("count", 1) > 0]
    return {
        "p": p,
        "bits": -math.log2(p) if p > 0 else None,
        "answered": seen[0] if seen else 0,                          # 0: not even the unigram was seen
        "floor": lowest["left"] / model.vocab,
        "orders": orders,
    }


def _add_shares(orders: list[dict[str, Any]]) -> None:
    """The share of the probability from each order, and the factor that is left to the orders below."""
    left = 1.0
    for order in orders:
        if order["by"] == "discounted":
            discount, weight = order["discounts"][min(order["count"], 3)], order["weight"]
            own = (order["count"] - discount) / order["total"]
        elif order["by"] in ("below", "weighted"):
            own, weight = 0.0, order["weight"] if order["order"] > 1 else 1.0
        else:
            own, weight = order["p"], 0.0
        order["share"], left = left * own, left * weight
        order["left"] = left


VIEW = View(
    "backoff", "The back-off ladder",
    "Each token is coloured by the longest n-gram ending in it that was seen in training. Choose one to see every "
    "order: its counts, the probability it reserves for tokens unseen in this context, and its result.",
    lambda subject: subject.of_classes[0].continues_text and hasattr(subject.of_classes[0].model, "backoff"), _make,
    needs="an n-gram language model",
)

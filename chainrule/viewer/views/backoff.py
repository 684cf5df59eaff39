"""The back-off ladder: for each token of a text what every order counted, left to the order below, and answered.

    kneser-ney    p(w | h) = (c(hw) - D) / c(h·) + γ(h) p(w | h')
    mle           p(w | h) = c(hw) / c(h·)
    add-k         p(w | h) = (c(hw) + k) / (c(h·) + kV)

h' is h without its first word; below single words lies 1 / V. An order whose context was never seen passes on what the
order below says. Every rung names the formula by which it came to its probability, and has the numbers that go into it.
"""

import math
from collections.abc import Sequence
from typing import Any

from chainrule.model import BOUNDARY
from chainrule.models.ngram.backoff import Rung
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View

LIMIT = 301     # tokens that are shown, the boundary before the first among them


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    model, reading = subject.model, subject.read(text, LIMIT)
    tokens = reading.tokens[0]
    ladders = _ladders(model, model.rungs(tokens), tokens.tolist())
    return {
        "name": subject.name,
        "estimator": model.settings.estimator,
        "k": model.settings.k,
        "order": model.order,
        "vocab": model.vocab,
        "left_out": reading.left_out,
        "shown": reading.shown,
        "tokens": [_token(model, ladder) for ladder in ladders],
    }


def _ladders(model: Any, rungs: Sequence[Rung], tokens: Sequence[int]) -> list[list[dict[str, Any]]]:
    """For each token but the first boundary, its rungs from the highest order whose context it has."""
    ladders = []
    for place in range(1, len(tokens)):
        since = place - _last_boundary(tokens, place)                 # tokens before it, its boundary among them
        climbed = [_rung(model, rung, place - 1, whole=rung.order in (model.order, since + 1)) for rung in rungs]
        ladders.append(climbed[since::-1] if since < len(climbed) else climbed[::-1])
    return ladders


def _last_boundary(tokens: Sequence[int], place: int) -> int:
    return next(at for at in range(place - 1, -1, -1) if tokens[at] == BOUNDARY)


def _rung(model: Any, rung: Rung, place: int, whole: bool) -> dict[str, Any]:
    """`whole`: its counts are how often a gram was seen, where lower orders have other ideas."""
    told: dict[str, Any] = {
        "order": rung.order,
        "found": bool(rung.found[place]),
        "weight": float(rung.weight[place]),
        "p": float(rung.probability[place]),
        "whole": whole,
    }
    if rung.counted is not None:
        told |= {
            "count": int(rung.counted.gram[place]),
            "total": int(rung.counted.total[place]),
            "kinds": rung.counted.kinds[place].tolist(),
            "discounts": list(rung.counted.discounts),
        }
    return told | {"by": _formula(model.settings.estimator, told)}


def _formula(estimator: str, rung: dict[str, Any]) -> str:
    """The name of the formula that gives a rung's probability."""
    if "count" not in rung:
        return "table" if rung["found"] else "weighted"
    if rung["total"] == 0:
        return "below"                                               # of single words too: nothing has been counted
    if estimator == "add-k" and not rung["whole"]:
        return "uniform"
    return {"kneser-ney": "discounted", "mle": "counted", "add-k": "added"}[estimator]


def _token(model: Any, rungs: list[dict[str, Any]]) -> dict[str, Any]:
    _share_out(rungs)
    p, lowest = rungs[0]["p"], rungs[-1]
    seen = [rung["order"] for rung in rungs if rung["found"] and rung.get("count", 1) > 0]
    return {
        "p": p,
        "bits": -math.log2(p) if p > 0 else None,
        "answered": seen[0] if seen else 0,                          # 0: even alone it was never seen
        "floor": lowest["left"] / model.vocab,
        "rungs": rungs,
    }


def _share_out(rungs: list[dict[str, Any]]) -> None:
    """What of the answer comes from each order, and what of p(w | h') it still leaves to the orders below."""
    left = 1.0
    for rung in rungs:
        if rung["by"] == "discounted":
            own, weight = (rung["count"] - rung["discounts"][min(rung["count"], 3)]) / rung["total"], rung["weight"]
        elif rung["by"] in ("below", "weighted"):
            own, weight = 0.0, rung["weight"] if rung["order"] > 1 else 1.0
        else:
            own, weight = rung["p"], 0.0
        rung["share"], left = left * own, left * weight
        rung["left"] = left


VIEW = View(
    "backoff", "The back-off ladder",
    "Each token coloured by the longest run of words, up to it, that was seen in learning. Choose one to climb down "
    "its ladder: what each order counted, what it holds back for words never seen there, and its probability.",
    lambda subject: subject.speaks and hasattr(subject.model, "rungs"), make,
)

"""Entity F1: named entities are spans of words, marked by BIO tags, and a span counts only if all of it is right.

    Anna  Smith  lives  in  New    York          spans: (PER, 0, 2), (LOC, 4, 6)
    B-PER I-PER  O      O   B-LOC  I-LOC         precision, recall and F1 over the sets of spans of all sentences

Spans are read as conlleval does (Tjong Kim Sang & Buchholz 2000), so IOB (I- may begin a span) and BIOES (E- ends one,
S- is one of one word) are read too, and a sequence that breaks the rules still has spans.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainrule.inference.statistics import Weights, bootstrap

Span: TypeAlias = tuple[str, int, int]
"""Type, first word, and the word after the last."""

OUTSIDE = "O"
MARKS = ("B", "I", "E", "S")


def name_spans(tags: Sequence[str]) -> bool:
    """Whether tags mark spans: O and names such as B-PER, one of which begins or continues a span."""
    marked = [tag for tag in tags if tag != OUTSIDE]
    return bool(marked) and all(tag[:2] in {f"{mark}-" for mark in MARKS} for tag in marked)


def spans(tags: Sequence[str]) -> set[Span]:
    found: set[Span] = set()
    begin, before, kind = 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, _, name = tag.partition("-")
        if before != OUTSIDE and _ends(before, mark, kind != name):
            found.add((kind, begin, place))
        if mark != OUTSIDE and _begins(before, mark, kind != name):
            begin = place
        before, kind = mark, name
    return found


def _ends(before: str, mark: str, other: bool) -> bool:
    """Whether a span ends before a word, by the mark of the word before it and its own; `other`: their types differ."""
    return other or before in ("E", "S") or mark in ("B", "S", OUTSIDE)


def _begins(before: str, mark: str, other: bool) -> bool:
    return other or mark in ("B", "S") or before in ("E", "S", OUTSIDE)


def measure_entities(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Precision, recall and F1 of spans, with an interval, and those of each type; the bootstrap draws sentences."""
    pairs = [(spans(true), spans(tags)) for true, tags in zip(truth, predicted, strict=True)]
    counts = np.array([(len(true & found), len(true), len(found)) for true, found in pairs], np.int64)   # (N, 3)
    types = sorted({kind for pair in pairs for each in pair for kind, _, _ in each})
    correct = Counter(kind for true, found in pairs for kind, _, _ in true & found)
    true_ones = Counter(kind for true, _ in pairs for kind, _, _ in true)
    found_ones = Counter(kind for _, found in pairs for kind, _, _ in found)
    precision, recall, _ = _shares(counts.sum(0))
    return {
        **bootstrap(lambda weights: _f1(weights, counts), len(pairs)).as_dict("entity_f1"),
        "entity_precision": precision, "entity_recall": recall, "entities": int(counts[:, 1].sum()),
        "entity_types": {
            kind: dict(zip(("precision", "recall", "f1"),
                           _shares(np.array([correct[kind], true_ones[kind], found_ones[kind]]))))
            for kind in types
        },
    }


def _f1(weights: Weights, counts: NDArray[np.int64]) -> float:
    return _shares(weights @ counts)[2]


def _shares(counts: NDArray[np.int64]) -> tuple[float, float, float]:
    """Precision, recall and F1 from the numbers of correct, true and predicted spans; 0 where there are none."""
    correct, true, found = counts.tolist()
    return correct / max(found, 1), correct / max(true, 1), 2 * correct / max(true + found, 1)

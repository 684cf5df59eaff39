"""How near a text is to what was wanted: BLEU and chrF by sacreBLEU, with its signatures, and ROUGE-L (Lin 2004).

ROUGE-L is the F1 of the longest common subsequence of words: lower-case, of letters and digits, not stemmed; on English
that is what Google's rouge-score gives. Of several references the nearest counts. All numbers are from 0 to 100.

Shapes: N texts, K counts that sacreBLEU keeps of each.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.bootstrap import ROUNDS, SEED, Score, Weights, bootstrap

# How well classes and tags are told: accuracy, F1 by class and on average (macro), and which is taken for which.
#
#     precision = right / told as this class    recall = right / being of this class    F1 = 2 right / (told + being)
#
# Macro F1 is the mean over the classes that occur, in truth or in what was told. Words of a sentence are drawn together
# for the interval, since they are not independent. Shares are from 0 to 1.
#
# Shapes: N examples or words, C classes.

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClassScore:
    precision: float
    recall: float
    f1: float
    examples: int                          # that are of this class


@dataclass(frozen=True)
class Classification:
    accuracy: Score
    f1: Score                              # macro
    classes: dict[str, ClassScore]
    confusion: tuple[tuple[int, ...], ...]     # (C, C): a row for each true class, a column for each told
    examples: int
    signature: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        return {
            **self.accuracy.as_dict("accuracy"),
            **self.f1.as_dict("f1"),
            "classes": {name: vars(score) for name, score in self.classes.items()},
            "confusion": {"names": list(self.classes), "rows": [list(row) for row in self.confusion]},
            "examples": self.examples,
            "signature": self.signature,
        }


@dataclass(frozen=True)
class Tagging:
    words: Classification
    known: Score | None                    # accuracy on words that training saw; None: there are none here
    unknown: Score | None                  # and on those that it never saw
    sentences: int

    def as_dict(self) -> dict[str, Any]:
        values = self.words.as_dict()
        values["words"] = values.pop("examples")
        for name, score in (("known_accuracy", self.known), ("unknown_accuracy", self.unknown)):
            values |= score.as_dict(name) if score else {name: None}
        return {**values, "sentences": self.sentences}


def measure_classes(truth: Numbers, told: Numbers, names: Sequence[str]) -> Classification:
    """(N,) the classes that examples have, and those they were told to have."""
    return _measure(truth, told, names, np.arange(len(truth)), "example")


def measure_tags(
    truth: Sequence[Numbers], told: Sequence[Numbers], names: Sequence[str], known: Sequence[NDArray[np.bool_]]
) -> Tagging:
    """The tags of the words of each sentence, those they were told to have, and whether training saw the word."""
    sentence = np.repeat(np.arange(len(truth)), [len(tags) for tags in truth])
    flat, said = (np.concatenate([np.empty(0, np.int64), *tags]) for tags in (truth, told))
    seen = np.concatenate([np.empty(0, bool), *known])
    words = _measure(flat, said, names, sentence, "sentence")
    parts = [
        _accuracy(flat[here] == said[here], sentence[here], len(truth)) if here.any() else None
        for here in (seen, ~seen)
    ]
    return Tagging(words, parts[0], parts[1], len(truth))


def _measure(truth: Numbers, told: Numbers, names: Sequence[str], unit: Numbers, drawn: str) -> Classification:
    """`unit` says which of the things drawn for the interval each belongs to."""
    if len(truth) != len(told):
        raise ValueError(f"{len(truth)} true classes and {len(told)} told; each has one")
    if not len(truth):
        raise UserError("there is nothing to measure: no example has a label.")
    count, units = len(names), int(unit[-1]) + 1
    cells, cell = np.unique(truth * count + told, return_inverse=True)     # truth and what was told, as they occur

    def macro(weights: Weights) -> float:
        right, being, said = _counts(cells, np.bincount(cell, weights[unit], len(cells)), count)
        occurs = being + said > 0
        return float(np.mean(2 * right[occurs] / (being + said)[occurs])) if occurs.any() else np.nan

    return Classification(
        accuracy=_accuracy(truth == told, unit, units),
        f1=bootstrap(macro, units),
        classes=dict(zip(names, _by_class(*_counts(cells, np.bincount(cell), count)), strict=True)),
        confusion=tuple(map(tuple, np.bincount(truth * count + told, minlength=count**2).reshape(count, -1).tolist())),
        examples=len(truth),
        signature=f"average:macro|interval:bootstrap-{drawn}|rounds:{ROUNDS}|seed:{SEED}|chainrule:{__version__}",
    )


def _accuracy(right: NDArray[np.bool_], unit: Numbers, units: int) -> Score:
    """The share that is right, drawn by unit."""
    rights, sizes = np.bincount(unit, right, units), np.bincount(unit, minlength=units)
    with np.errstate(invalid="ignore"):                # a draw of units that have nothing in them has no share
        return bootstrap(lambda weights: float((weights @ rights) / (weights @ sizes)), units)


def _counts(cells: Numbers, weights: NDArray[Any], count: int) -> tuple[Floats, Floats, Floats]:
    """(C,) for each class: told rightly, being of it, told to be of it; from what the cells of the confusion hold."""
    truth, told = np.divmod(cells, count)
    right, being, said = ((truth, weights * (truth == told)), (truth, weights), (told, weights))
    return _sums(*right, count), _sums(*being, count), _sums(*said, count)


def _sums(classes: Numbers, weights: NDArray[Any], count: int) -> Floats:
    return np.bincount(classes, weights.astype(np.float64), count).astype(np.float64)


def _by_class(right: Floats, being: Floats, told: Floats) -> list[ClassScore]:
    def share(part: float, whole: float) -> float:
        return part / whole if whole else 0.0

    return [
        ClassScore(share(hit, said), share(hit, true), share(2 * hit, true + said), int(true))
        for hit, true, said in zip(right.tolist(), being.tolist(), told.tolist())
    ]


WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Overlap:
    bleu: Score
    chrf: Score
    rouge_l: Score
    texts: int
    signature: str                         # of each number, with its name before it

    def as_dict(self) -> dict[str, Any]:
        """Plain values for strict JSON."""
        scores = {**self.bleu.as_dict("bleu"), **self.chrf.as_dict("chrf"), **self.rouge_l.as_dict("rouge_l")}
        return {**scores, "texts": self.texts, "signature": self.signature}


def measure_overlap(told: Sequence[str], wanted: Sequence[Sequence[str]], *, lowercase: bool = False) -> Overlap:
    """Texts against their references, one or more each."""
    if len(told) != len(wanted):
        raise ValueError(f"{len(told)} texts and references for {len(wanted)}; each has some")
    if not told or not all(wanted):
        raise UserError("there is nothing to measure: every text needs a reference.")
    bleu, chrf = _metrics(lowercase)
    scores = [_sacre(metric, told, wanted) for metric in (bleu, chrf)]
    nearest = np.array([max(rouge_l(text, one) for one in some) for text, some in zip(told, wanted)])
    signatures = {
        "bleu": f"{bleu.get_signature()}", "chrf": f"{chrf.get_signature()}",
        "rouge_l": f"case:lc|tok:letters-digits|stem:no|refs:nearest|chainrule:{__version__}",
        "interval": f"bootstrap-text|rounds:{ROUNDS}|seed:{SEED}",
    }
    return Overlap(
        bleu=scores[0],
        chrf=scores[1],
        rouge_l=bootstrap(lambda weights: float(100 * (weights @ nearest) / len(told)), len(told)),
        texts=len(told),
        signature="; ".join(f"{name} {signature}" for name, signature in signatures.items()),
    )


def _metrics(lowercase: bool) -> tuple[Any, Any]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise UserError("BLEU and chrF are sacreBLEU's: pip install 'chainrule[translate]'") from None
    return BLEU(lowercase=lowercase, force=True), CHRF(lowercase=lowercase)


def _sacre(metric: Any, told: Sequence[str], wanted: Sequence[Sequence[str]]) -> Score:
    """sacreBLEU counts once; its own bootstrap holds every draw in memory, so the counts are drawn here."""
    most = max(map(len, wanted))
    streams = [[some[place] if place < len(some) else None for some in wanted] for place in range(most)]
    counts = np.array(metric._extract_corpus_statistics(told, streams), np.int64)            # (N, K)

    def score(weights: Weights) -> float:
        return float(metric._compute_score_from_stats((weights @ counts).tolist()).score)

    return bootstrap(score, len(told))


def rouge_l(told: str, wanted: str) -> float:
    """From 0 to 1."""
    return subsequence_f1(rouge_words(told), rouge_words(wanted))


def rouge_words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def subsequence_f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """F1 of the longest common subsequence."""
    common = longest_common_subsequence(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence, a column of the table at a time as the bits of a number.

    A bit that is 0 says that the table rises by one there (Hyyrö 2004).
    """
    places: dict[str, int] = defaultdict(int)
    for place, word in enumerate(first):
        places[word] |= 1 << place
    every = (1 << len(first)) - 1
    flat = every
    for word in second:
        here = flat & places[word] if word in places else 0
        flat = ((flat + here) | (flat - here)) & every
    return len(first) - flat.bit_count()

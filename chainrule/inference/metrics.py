"""Metrics of tasks, with 95 % intervals: accuracy and F1 of classes, tags and answers; BLEU, chrF, ROUGE-L of texts.

    precision = correct / predicted as this class   recall = correct / of this class   F1 = 2 · P · R / (P + R)

Macro F1 is the mean over the classes that occur in the truth or in the predictions. BLEU and chrF are sacreBLEU's, with
its signatures. ROUGE-L (Lin 2004) is the F1 of the longest common subsequence of words: lower-case letters and digits,
not stemmed, as Google's rouge-score has it for English; of several references the most similar counts. Shares of
classes are from 0 to 1, scores of texts from 0 to 100.

Shapes: N examples, words or texts, C classes, K counts that sacreBLEU keeps of each text.
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.inference.statistics import ROUNDS, SEED, Score, Weights, bootstrap

ClassIds = NDArray[np.int64]
Floats = NDArray[np.float64]

WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class ClassScore:
    precision: float
    recall: float
    f1: float
    examples: int                          # of this class


@dataclass(frozen=True)
class Classification:
    accuracy: Score
    f1: Score                              # macro
    classes: dict[str, ClassScore]
    confusion: tuple[tuple[int, ...], ...]     # (C, C): a row for each true class, a column for each predicted
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
    known: Score | None                    # accuracy on words of the training text; None: there are none here
    unknown: Score | None                  # accuracy on all other words
    sentences: int

    def as_dict(self) -> dict[str, Any]:
        values = self.words.as_dict()
        values["words"] = values.pop("examples")
        for name, score in (("known_accuracy", self.known), ("unknown_accuracy", self.unknown)):
            values |= score.as_dict(name) if score else {name: None}
        return {**values, "sentences": self.sentences}


def measure_classes(truth: ClassIds, predicted: ClassIds, names: Sequence[str]) -> Classification:
    """(N,) the true classes of examples, and the predicted ones."""
    return _measure(truth, predicted, names, np.arange(len(truth)), "example")


def measure_tags(
    truth: Sequence[ClassIds], predicted: Sequence[ClassIds], names: Sequence[str],
    known: Sequence[NDArray[np.bool_]] | None = None,
) -> Tagging:
    """The true tags of the words of each sentence, the predicted ones, and whether the training text has the word.

    The bootstrap draws whole sentences, since the words of a sentence are not independent.
    """
    sentence = np.repeat(np.arange(len(truth)), [len(tags) for tags in truth])
    true_tags, tags = (np.concatenate([np.empty(0, np.int64), *each]) for each in (truth, predicted))
    words = _measure(true_tags, tags, names, sentence, "sentence")
    if known is None:
        return Tagging(words, None, None, len(truth))
    seen = np.concatenate([np.empty(0, bool), *known])
    parts = [
        _accuracy(true_tags[here] == tags[here], sentence[here], len(truth)) if here.any() else None
        for here in (seen, ~seen)
    ]
    return Tagging(words, parts[0], parts[1], len(truth))


def _measure(truth: ClassIds, predicted: ClassIds, names: Sequence[str], unit: ClassIds, drawn: str) -> Classification:
    """`unit` (N,): which of the units that the bootstrap draws each example belongs to."""
    if len(truth) != len(predicted):
        raise ValueError(f"{len(truth)} true classes and {len(predicted)} predicted ones; there must be as many")
    if not len(truth):
        raise UserError("there are no examples to measure: none has a label.")
    count, units = len(names), int(unit[-1]) + 1
    cells, cell = np.unique(truth * count + predicted, return_inverse=True)    # of the confusion, those that occur

    def macro_f1(weights: Weights) -> float:
        correct, true, guessed = _class_counts(cells, np.bincount(cell, weights[unit], len(cells)), count)
        occurs = true + guessed > 0
        return float(np.mean(2 * correct[occurs] / (true + guessed)[occurs])) if occurs.any() else np.nan

    confusion = np.bincount(truth * count + predicted, minlength=count**2).reshape(count, -1)
    return Classification(
        accuracy=_accuracy(truth == predicted, unit, units),
        f1=bootstrap(macro_f1, units),
        classes=dict(zip(names, _by_class(*_class_counts(cells, np.bincount(cell), count)), strict=True)),
        confusion=tuple(map(tuple, confusion.tolist())),
        examples=len(truth),
        signature=f"average:macro|interval:bootstrap-{drawn}|rounds:{ROUNDS}|seed:{SEED}|chainrule:{__version__}",
    )


def _accuracy(correct: NDArray[np.bool_], unit: ClassIds, units: int) -> Score:
    """The share of correct examples; the bootstrap draws units."""
    corrects, sizes = np.bincount(unit, correct, units), np.bincount(unit, minlength=units)
    with np.errstate(invalid="ignore"):                # a draw of empty units only has no share
        return bootstrap(lambda weights: float((weights @ corrects) / (weights @ sizes)), units)


def _class_counts(cells: ClassIds, weights: NDArray[Any], count: int) -> tuple[Floats, Floats, Floats]:
    """(C,) for each class: correct examples, true ones and predicted ones, from the cells of the confusion matrix."""
    truth, predicted = np.divmod(cells, count)
    correct = _sums(truth, weights * (truth == predicted), count)
    return correct, _sums(truth, weights, count), _sums(predicted, weights, count)


def _sums(classes: ClassIds, weights: NDArray[Any], count: int) -> Floats:
    return np.bincount(classes, weights.astype(np.float64), count).astype(np.float64)


def _by_class(correct: Floats, true: Floats, predicted: Floats) -> list[ClassScore]:
    def share(part: float, whole: float) -> float:
        return part / whole if whole else 0.0

    return [
        ClassScore(share(hits, guesses), share(hits, trues), share(2 * hits, trues + guesses), int(trues))
        for hits, trues, guesses in zip(correct.tolist(), true.tolist(), predicted.tolist())
    ]


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


def measure_overlap(texts: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Overlap:
    """Texts against their references, one or more each."""
    if len(texts) != len(references):
        raise ValueError(f"{len(texts)} texts and references for {len(references)}; each text needs some")
    if not texts or not all(references):
        raise UserError("there are no texts to measure: every text needs a reference.")
    bleu, chrf = _sacrebleu_metrics(lowercase)
    scores = [_sacrebleu_score(metric, texts, references) for metric in (bleu, chrf)]
    nearest = np.array([max(rouge_l(text, one) for one in some) for text, some in zip(texts, references)])
    signatures = {
        "bleu": f"{bleu.get_signature()}", "chrf": f"{chrf.get_signature()}",
        "rouge_l": f"case:lc|tok:letters-digits|stem:no|refs:nearest|chainrule:{__version__}",
        "interval": f"bootstrap-text|rounds:{ROUNDS}|seed:{SEED}",
    }
    return Overlap(
        bleu=scores[0],
        chrf=scores[1],
        rouge_l=bootstrap(lambda weights: float(100 * (weights @ nearest) / len(texts)), len(texts)),
        texts=len(texts),
        signature="; ".join(f"{name} {signature}" for name, signature in signatures.items()),
    )


def measure_exact(texts: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """The share of texts that are one of their references, apart from spaces; from 0 to 1."""
    def words(text: str) -> list[str]:
        return text.split()

    right = np.array([words(text) in map(words, some) for text, some in zip(texts, references, strict=True)])
    return _accuracy(right, np.arange(len(right)), len(right))


ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalise_answer(text: str) -> str:
    """As SQuAD compares answers (Rajpurkar et al. 2016): lower case, no punctuation, no articles, single spaces."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", bare).split())


def answer_f1(text: str, reference: str) -> float:
    """F1 of the words of two normalised answers, as bags; where one has no word, 1 if neither has."""
    words, others = (normalise_answer(each).split() for each in (text, reference))
    if not words or not others:
        return float(words == others)
    common = (Counter(words) & Counter(others)).total()
    return 2 * common / (len(words) + len(others))


def measure_answers(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Exact match and F1 of answers, from 0 to 1; of several right ones the nearest counts, of none the empty one."""
    pairs = [(text, some or [""]) for text, some in zip(texts, references, strict=True)]
    exact = np.array([normalise_answer(text) in map(normalise_answer, some) for text, some in pairs])
    f1 = np.array([max(answer_f1(text, one) for one in some) for text, some in pairs])
    return {
        **_accuracy(exact, np.arange(len(pairs)), len(pairs)).as_dict("exact"),
        **bootstrap(lambda weights: float(weights @ f1 / len(pairs)), len(pairs)).as_dict("f1"),
        "texts": len(pairs),
        "signature": f"normalise:squad|refs:nearest|interval:bootstrap-text|rounds:{ROUNDS}|seed:{SEED}"
                     f"|chainrule:{__version__}",
    }


def _sacrebleu_metrics(lowercase: bool) -> tuple[Any, Any]:
    from sacrebleu.metrics.bleu import BLEU  # here, because importing it takes time
    from sacrebleu.metrics.chrf import CHRF

    return BLEU(lowercase=lowercase, force=True), CHRF(lowercase=lowercase)


def _sacrebleu_score(metric: Any, texts: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """sacreBLEU counts once; its own bootstrap holds every draw in memory, so the counts are drawn here."""
    most = max(map(len, references))
    streams = [[some[place] if place < len(some) else None for some in references] for place in range(most)]
    counts = np.array(metric._extract_corpus_statistics(texts, streams), np.int64)            # (N, K)

    def score(weights: Weights) -> float:
        return float(metric._compute_score_from_stats((weights @ counts).tolist()).score)

    return bootstrap(score, len(texts))


def rouge_l(text: str, reference: str) -> float:
    """From 0 to 1."""
    return subsequence_f1(rouge_words(text), rouge_words(reference))


def rouge_words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def subsequence_f1(words: Sequence[str], others: Sequence[str]) -> float:
    """F1 of the longest common subsequence."""
    common = longest_common_subsequence(words, others)
    return 2 * common / (len(words) + len(others)) if common else 0.0


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Its length. Each column of the dynamic programming table is the bits of one number.

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

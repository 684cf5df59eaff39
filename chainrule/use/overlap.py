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

from chainrule import __version__
from chainrule.errors import UserError
from chainrule.use.bootstrap import ROUNDS, SEED, Score, Weights, bootstrap

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
    return common_share(words_of(told), words_of(wanted))


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def common_share(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """F1 of the longest common subsequence."""
    common = longest_common(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
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

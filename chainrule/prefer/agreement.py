"""Agreement between raters: raw, Cohen's kappa for two raters, Krippendorff's alpha for more; Wilson's intervals.

    raw      share of the shared pairs on which two raters said the same (first answer, second answer, or tie)
    kappa    (Po - Pe) / (1 - Pe)    Po: raw agreement; Pe = Σ_c p₁(c) p₂(c): that of two raters who choose at random,
                                     each with the shares of their own answers (Cohen 1960)
    alpha    1 - Do / De             Do: share of pairs of ratings of the same unit that differ, De: of any two ratings
                                     (Krippendorff, for categories); units may have different raters

1: they always agree; 0: as often as at random; below 0: less often. A share k of n has Wilson's 95 % interval.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, TypeAlias

Label: TypeAlias = int | None                       # number of the better answer; None: a tie
Units: TypeAlias = Mapping[str, Mapping[str, Label]]
"""Pair -> rater -> label."""

Z = 1.959964                                        # of a 95 % interval


@dataclass(frozen=True)
class Share:
    """k of n, with its 95 % interval."""

    count: int
    of: int
    share: float | None
    low: float
    high: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def share_of(count: int, of: int) -> Share:
    """Wilson's score interval, which is right for few clicks too (Wilson 1927)."""
    if of == 0:
        return Share(0, 0, None, 0.0, 1.0)
    p, size = count / of, 1 + Z**2 / of
    middle = (p + Z**2 / (2 * of)) / size
    half = Z * math.sqrt(p * (1 - p) / of + Z**2 / (4 * of**2)) / size
    return Share(count, of, p, max(0.0, middle - half), min(1.0, middle + half))


def cohen_kappa(labels: Sequence[tuple[Label, Label]]) -> float | None:
    """Of two raters' labels of the same pairs. None: there is none, or both always say the same."""
    n = len(labels)
    if n == 0:
        return None
    observed = sum(one == other for one, other in labels) / n
    first, second = (Counter(column) for column in zip(*labels))
    expected = sum(first[label] * second[label] for label in first) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def krippendorff_alpha(units: Iterable[Sequence[Label]]) -> float | None:
    """Of the labels of each unit, of any number of raters."""
    several = [labels for labels in units if len(labels) > 1]
    counts = Counter(label for labels in several for label in labels)
    n = counts.total()
    differ = sum(_differing(Counter(labels)) / (len(labels) - 1) for labels in several)
    expected = _differing(counts)
    return None if expected == 0 else 1 - (n - 1) * differ / expected


def _differing(counts: Counter[Label]) -> int:
    """Ordered pairs of ratings that differ."""
    return counts.total() ** 2 - sum(count**2 for count in counts.values())


def measure_agreement(units: Units) -> dict[str, Any]:
    """On the pairs that several raters have rated; kappa for two raters, alpha for more."""
    shared = [labels for labels in units.values() if len(labels) > 1]
    raters = sorted({rater for labels in shared for rater in labels})
    two = [pair for labels in shared for pair in combinations(labels.values(), 2)]
    raw = share_of(sum(one == other for one, other in two), len(two))
    if len(raters) <= 2:
        name, value = "Cohen's kappa", cohen_kappa([(labels[raters[0]], labels[raters[1]]) for labels in shared])
    else:
        name, value = "Krippendorff's alpha", krippendorff_alpha([list(labels.values()) for labels in shared])
    return {"pairs": len(shared), "raters": raters, "raw": raw.as_dict(), "measure": name, "value": value}

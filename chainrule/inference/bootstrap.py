"""Bootstrap: a number with its 95 % confidence interval (Efron 1979; for translations Koehn 2004).

The N units that were measured are drawn with replacement, N of them, and the number is computed again; the middle 95 %
of a thousand such numbers are the interval. Draws, seed and bounds are those of sacreBLEU.

Shapes: N units that are independent of each other: examples, or sentences with all their words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

ROUNDS = 1000
SEED = 12345

Weights: TypeAlias = NDArray[np.int64]
"""(N,) how often each unit is drawn."""


@dataclass(frozen=True)
class Score:
    value: float
    low: float            # 95 % of the draws lie between low and high
    high: float

    def as_dict(self, name: str) -> dict[str, Any]:
        return {name: self.value, f"{name}_interval": [self.low, self.high]}


def bootstrap(measure: Callable[[Weights], float], count: int, *, rounds: int = ROUNDS, seed: int = SEED) -> Score:
    """`measure` of all units, each counted once, and of each draw; draws without a number (nan) are left out."""
    generator = np.random.default_rng(seed)
    draws = (np.bincount(generator.integers(0, count, count), minlength=count) for _ in range(rounds))
    drawn = np.sort(np.array([measure(weights) for weights in draws]))
    drawn = drawn[~np.isnan(drawn)]
    beyond = len(drawn) // 40
    return Score(measure(np.ones(count, np.int64)), float(drawn[beyond]), float(drawn[len(drawn) - beyond - 1]))

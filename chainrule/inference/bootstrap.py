"""A number with its 95 % interval, by the bootstrap (Efron 1979; for translations Koehn 2004).

What was measured is drawn again, as many as there are and with repetition, and the number taken anew; of a thousand
such numbers the middle 95 % are the interval. Draws, seed and bounds are those of sacreBLEU.

Shapes: N things measured, each by itself (examples, or sentences whose words belong together).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

ROUNDS = 1000
SEED = 12345

Weights: TypeAlias = NDArray[np.int64]
"""(N,) how often each is drawn."""


@dataclass(frozen=True)
class Score:
    value: float
    low: float            # 95 % of the rounds lie between
    high: float

    def as_dict(self, name: str) -> dict[str, Any]:
        return {name: self.value, f"{name}_interval": [self.low, self.high]}


def bootstrap(measure: Callable[[Weights], float], count: int, *, rounds: int = ROUNDS, seed: int = SEED) -> Score:
    """`measure` of all, each counted once, and of each draw; a draw that has no number (nan) is passed by."""
    chance = np.random.default_rng(seed)
    draws = (np.bincount(chance.integers(0, count, count), minlength=count) for _ in range(rounds))
    drawn = np.sort(np.array([measure(weights) for weights in draws]))
    drawn = drawn[~np.isnan(drawn)]
    beyond = len(drawn) // 40
    return Score(measure(np.ones(count, np.int64)), float(drawn[beyond]), float(drawn[len(drawn) - beyond - 1]))

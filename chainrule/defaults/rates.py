"""Default learning rate, batch size and dropout: functions of the model's size and of the epochs, measured once.

`benchmarks/defaults/defaults.py` searches around them; docs/training/defaults.md has the figures.
"""

import math
from collections.abc import Mapping
from typing import Any

PEAKS = {"muon": 0.02, "adamw": 0.01}    # learning rates of many steps of a network of SMALL parameters or fewer
SMALL = 5e5                 # parameters
DECAY = 0.4                 # the learning rate falls with the parameters to this power
LEAST = 0.1                 # fraction of it that is left to the largest network
MANY = 2000                 # steps; for fewer the rate is higher, by the square root of how many fewer they are,
MOST = 2.0                  # up to this factor

MAX_EPOCHS = 4              # epochs beyond which a network overfits
DROPOUT = ((8, 0.0), (32, 0.05), (256, 0.1), (1024, 0.2), (math.inf, 0.3))
"""Up to so many epochs times parameters for each token of the text: the dropout."""

SIZES = ("size", "layers", "width", "hidden", "heads", "context", "embedding", "order")
"""Settings of a size: where one of them is given, the others are the kind's own."""

STEPS = 300                 # least steps of a run, where the batch size is free


def rate_settings(optimizer: str, parameters: float, steps: float = math.inf) -> Mapping[str, Any]:
    """The optimizer, its learning rate for so many steps of a network of so many parameters, and how it falls."""
    falling = {"train.optimizer": optimizer, "train.schedule": "linear", "train.final_lr": 0.0}
    if optimizer not in PEAKS:
        return falling                 # SGD has the learning rate of its kind
    size = max(LEAST, min(1.0, (SMALL / parameters) ** DECAY))
    few = max(1.0, min(MOST, math.sqrt(MANY / max(1.0, steps))))
    momentum = {"train.momentum": 0.9 if parameters < 2 * SMALL else 0.95} if optimizer == "muon" else {}
    return {**falling, "train.lr": float(f"{PEAKS[optimizer] * size * few:.2g}"), **momentum}


def dropout_for(epochs: float, per_token: float) -> float:
    """More for what is read more often, and for more parameters for each token: both are what it takes to overfit."""
    if epochs <= 1:
        return 0.0
    return next(dropout for most, dropout in DROPOUT if epochs * per_token <= most)

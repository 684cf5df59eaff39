"""Default learning rate, batch size and dropout: functions of the model's size and of the epochs, measured once.

`benchmarks/defaults.py` searches around them; docs/defaults.md has the figures.
"""

import math
from collections.abc import Mapping
from typing import Any

PEAKS = {"muon": 0.02, "adamw": 0.006}    # learning rates of a network of SMALL parameters or fewer
SMALL = 5e5                            # parameters
DECAY = 0.4                            # the learning rate falls with the parameters to this power
LEAST = 0.1                            # fraction of it that is left to the largest network

MAX_EPOCHS = 4              # epochs beyond which a network overfits
DROPOUT = ((1.0, 0.0), (MAX_EPOCHS, 0.1), (16.0, 0.2), (math.inf, 0.3))    # up to so many epochs: the dropout

SIZES = ("size", "layers", "width", "hidden", "heads", "context", "embedding", "order")
"""Settings of a size: where one of them is given, the others are the kind's own."""

STEPS = 300                 # least steps of a run, where the batch size is free


def rate_settings(optimizer: str, parameters: float) -> Mapping[str, Any]:
    """The optimizer, its learning rate for a network of so many parameters, and how it falls."""
    shrunk = max(LEAST, min(1.0, (SMALL / parameters) ** DECAY))
    falling = {"train.optimizer": optimizer, "train.schedule": "linear", "train.final_lr": 0.0}
    if optimizer not in PEAKS:
        return falling                 # SGD has the learning rate of its kind
    momentum = {"train.momentum": 0.9 if parameters < 2 * SMALL else 0.95} if optimizer == "muon" else {}
    return {**falling, "train.lr": float(f"{PEAKS[optimizer] * shrunk:.2g}"), **momentum}


def dropout_for(epochs: float, per_token: float) -> float:
    """What is read more often needs more of it, and half if the network has fewer parameters than the text tokens."""
    dropout = next(dropout for most, dropout in DROPOUT if epochs <= most)
    return dropout if per_token >= 1 else dropout / 2

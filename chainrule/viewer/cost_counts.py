"""What a text of T tokens costs, counted: FLOPs, and bytes of the state or of the activations. Nothing is run.

FLOPs are exact at any length, and so is what they grow by: a recurrent network is linear in T and takes its T steps one
after the other; a Transformer is quadratic, and learns from all T tokens at once. The numbers are those of
`chainrule plan` (flops.py): bytes of training are the activations and logits that it counts for T tokens, in mixed
precision; bytes of generating are the state, which is a KV cache or what a recurrent network carries on, in float32.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from chainrule.flops import kept_bytes, kv_cache_bytes, row_flops
from chainrule.inference.forward import vocabulary_size
from chainrule.layers.cross_entropy import CHUNK_LOGITS
from chainrule.layers.recurrent import RecurrentStack
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import LanguageModel, tensors

COUNTED = [1 << power for power in range(2, 15)]    # lengths for which costs are counted, beyond any context too


def count_costs(model: LanguageModel) -> dict[str, dict[str, Any]]:
    """For each way: FLOPs and bytes at the lengths COUNTED; the polynomial of T that FLOPs are, if any; their power."""
    forward = dict(zip(COUNTED, row_flops(model, COUNTED), strict=True))
    every = np.cumsum(row_flops(model, range(1, COUNTED[-1] + 1)))          # all prefixes read again
    flops = {"learn": [3 * forward[length] for length in COUNTED], "write": list(forward.values()),
             "reread": [float(every[length - 1]) for length in COUNTED]}
    return {
        way: {
            "tokens": COUNTED, "flops": counts,
            "bytes": [(training_bytes if way == "learn" else state_bytes)(model, length) for length in COUNTED],
            "terms": polynomial(COUNTED, counts, 3 if way == "reread" else 2),
            "power": math.log2(counts[-1] / counts[-2]),
        }
        for way, counts in flops.items()
    }


def is_parallel(model: LanguageModel) -> bool:
    """Whether all tokens of a text are learned from at once: no state waits for the one before it."""
    return not any(isinstance(part, RecurrentStack) for part in model.modules())


def polynomial(lengths: Sequence[int], counts: Sequence[float], degree: int) -> list[float] | None:
    """The coefficients of T, T², … that give the counts exactly; None: they are no such polynomial."""
    rows = np.array([[float(length) ** power for power in range(1, degree + 1)] for length in lengths])
    found = np.linalg.solve(rows[:degree], np.array(counts[:degree]))
    found[np.abs(found) < 1e-9 * np.abs(found).max()] = 0.0
    return found.tolist() if np.allclose(rows @ found, counts, rtol=1e-6) else None


def training_bytes(model: LanguageModel, length: int) -> float:
    """Bytes of activations and logits of one training step, as `chainrule plan` counts them for a GPU."""
    logits = 8.0 * vocabulary_size(model)                           # a token's logits and their gradient
    return kept_bytes(model) * length + min(logits * length, 8.0 * CHUNK_LOGITS["cuda"])


def state_bytes(model: LanguageModel, length: int) -> int:
    """Bytes of the state after `length` tokens, in float32: the KV cache, or what a recurrent network carries on."""
    settings = getattr(model, "settings", None)
    if isinstance(settings, TransformerSettings):
        return 2 * kv_cache_bytes(settings, length)                 # which is of bf16
    return sum(part.numel() * part.element_size() for part in tensors(model.start(1)))

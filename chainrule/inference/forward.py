"""How a model is read when nobody trains it: at rest, on its own device, in pieces whose answers fit in memory.

Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.model import BOUNDARY, LanguageModel, State

LOGITS = 1 << 24    # numbers in the largest (B, T, V) answer asked for at once: 64 MB of float32
TARGETS = 1 << 18   # targets asked for at once where a model looks up only these
ON_CPU = 1 << 12    # likewise where it computes them on a CPU, whose caches hold no more


@contextmanager
def eval_mode(model: LanguageModel) -> Iterator[None]:
    """Without dropout; afterwards every part of the model is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def device_of(model: LanguageModel) -> torch.device:
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def on_device(model: LanguageModel, tokens: NDArray[np.integer]) -> Tensor:
    return torch.from_numpy(np.asarray(tokens, np.int64)).to(device_of(model))


def vocabulary_size(model: LanguageModel) -> int:
    """V, which the protocol does not say, so ask."""
    logits, _ = model.step(on_device(model, np.array([[BOUNDARY]])), model.start(1))
    return logits.shape[-1]


def targets_at_once(model: LanguageModel) -> int:
    """How many targets, rows times tokens, fit in one question."""
    if type(model).score is not LanguageModel.score:
        return TARGETS
    return _answers_at_once(model)


def _answers_at_once(model: LanguageModel) -> int:
    most = max(1, LOGITS // vocabulary_size(model))
    return min(most, ON_CPU) if device_of(model).type == "cpu" else most


def read(model: LanguageModel, tokens: Tensor) -> tuple[Tensor, State]:
    """(B, T) -> (B, V): what follows texts that are read from their start, and their state."""
    state = model.start(len(tokens))
    width = max(1, _answers_at_once(model) // len(tokens))
    for begin in range(0, tokens.shape[1], width):
        logits, state = model.step(tokens[:, begin : begin + width], state)
    return logits[:, -1], state

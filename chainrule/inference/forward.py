"""Forward passes without training: eval mode, the model's device, and prefill in chunks whose logits fit in memory.

Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chainrule.model import BOUNDARY, LanguageModel, State

LOGITS = 1 << 24    # numbers in the largest (B, T, V) logits of one call: 64 MB of float32
TARGETS = 1 << 18   # targets of one call, for a model with a `score` of its own, which makes no logits
ON_CPU = 1 << 12    # targets of one call on a CPU, whose caches hold no more
PREFILL = 1 << 12   # tokens of one call that makes the logits of the last token only


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """`model.eval()`, so no dropout; afterwards every module has its own mode again."""
    in_training = [module for module in model.modules() if module.training]
    for module in in_training:                             # usually none
        vars(module)["training"] = False                   # as an attribute is set, but not by torch's slow way
    try:
        yield
    finally:
        for module in in_training:
            vars(module)["training"] = True


def device_of(model: nn.Module) -> torch.device:
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def on_device(model: nn.Module, tokens: NDArray[np.integer]) -> Tensor:
    return torch.from_numpy(np.asarray(tokens, np.int64)).to(device_of(model))


def vocabulary_size(model: LanguageModel) -> int:
    """V, from the logits of one token: the protocol does not declare it."""
    logits, _ = model.step(on_device(model, np.array([[BOUNDARY]])), model.start(1))
    return logits.shape[-1]


def targets_at_once(model: LanguageModel) -> int:
    """How many targets, rows times tokens, one call may have."""
    if type(model).score is not LanguageModel.score:
        return TARGETS
    return logits_at_once(model)


def logits_at_once(model: LanguageModel) -> int:
    most = max(1, LOGITS // vocabulary_size(model))
    return min(most, ON_CPU) if device_of(model).type == "cpu" else most


def prefill(model: LanguageModel, tokens: Tensor, state: State = None) -> tuple[Tensor, State]:
    """(B, T) -> (B, V): reads texts in chunks, from their start or from a state: the logits after them, and their
    state."""
    state = model.start(len(tokens)) if state is None else state
    at_once = logits_at_once(model) if type(model).next_logits is LanguageModel.next_logits else PREFILL
    width = max(1, at_once // len(tokens))
    for begin in range(0, tokens.shape[1], width):
        logits, state = model.next_logits(tokens[:, begin : begin + width], state)
    return logits, state

"""What may follow texts that begin alike: their common beginning is read once, and each goes on from a copy of its
state.

Shapes: T tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from chainrule.look.subject import Reading, Subject
from chainrule.model import State, pick
from chainrule.use.reading import LOGITS, at_rest

LOOSE = 8    # last tokens of the beginning that are read again: what follows may spell them otherwise


@dataclass(frozen=True)
class Trunk:
    """A beginning that has been read."""

    tokens: Tensor    # (1, T)
    state: State


def grow(subject: Subject, text: str, limit: int) -> Trunk | None:
    tokens = subject.read(text, limit).tokens[:, :-LOOSE]
    return Trunk(tokens, _read(subject, tokens, subject.model.start(1))[1]) if tokens.shape[1] else None


def follow(subject: Subject, text: str, limit: int, trunk: Trunk | None = None) -> tuple[Tensor, Reading]:
    """(V,) logits of what may follow the text, as much of it as can be read."""
    reading = subject.read(text, limit)
    tokens, state = reading.tokens, None
    if trunk is not None and torch.equal(tokens[:, : trunk.tokens.shape[1]], trunk.tokens):
        tokens = tokens[:, trunk.tokens.shape[1] :]
        state = pick(trunk.state, torch.zeros(1, dtype=torch.long)) if tokens.shape[1] else None
    if state is None:
        tokens, state = reading.tokens, subject.model.start(1)
    return _read(subject, tokens, state)[0], reading


@torch.inference_mode()
def _read(subject: Subject, tokens: Tensor, state: State) -> tuple[Tensor, State]:
    width = max(1, LOGITS // len(subject.run.tokenizer))    # tokens whose answers fit in memory
    with at_rest(subject.model):
        for begin in range(0, tokens.shape[1], width):
            logits, state = subject.model.step(tokens[:, begin : begin + width], state)
    return logits[0, -1], state

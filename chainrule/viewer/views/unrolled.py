"""A tiny network with every number: unrolled in time where it is recurrent, in depth where it is a Transformer.

A step is one vector being made of others. The page walks through all steps, from the vector of a token to the die, and
writes the formula of each with its numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch

from chainrule.viewer import unrolled_rnn, unrolled_transformer
from chainrule.viewer.subject import Subject
from chainrule.viewer.view import Options, View

LIMIT = 12          # tokens that are shown, the boundary before the first among them
PARAMETERS = 2000   # of a network that is still tiny
VOCAB = 16


def fits(subject: Subject) -> bool:
    if not subject.speaks or len(subject.run.tokenizer) > VOCAB:
        return False
    tiny = sum(parameter.numel() for parameter in subject.model.parameters()) <= PARAMETERS
    return tiny and (unrolled_rnn.suits(subject.model) or unrolled_transformer.suits(subject.model))


def make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    reading = subject.read(text, LIMIT)
    way = unrolled_rnn if unrolled_rnn.suits(subject.model) else unrolled_transformer
    with torch.no_grad():
        network = way.unroll(subject, reading.tokens)
    return {
        "name": subject.name,
        "left_out": reading.left_out,
        "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
        "order": network.order,
        "tokens": reading.shown,
        "ids": reading.tokens[0].tolist(),
        "vocab": subject.show(range(len(subject.run.tokenizer))),
        "nodes": network.nodes,
    }


VIEW = View(
    "unrolled", "Unrolled, with every number",
    "Each step makes one vector of others, from the vector of a token to the die. Go forward and back by the buttons "
    "or the arrow keys; choose a number to see how it was made.",
    fits, make,
)

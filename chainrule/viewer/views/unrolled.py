"""A tiny network unrolled with every number: a recurrent one in time, a Transformer in depth.

A step computes one vector from others. The page goes through all steps, from the embedding of a token to the softmax,
and writes the formula of each with its numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch

from chainrule.viewer.subject import Subject
from chainrule.viewer.unrolled_rnn import is_recurrent, unroll_rnn
from chainrule.viewer.unrolled_transformer import is_transformer, unroll_transformer
from chainrule.viewer.views import Options, View

LIMIT = 12          # tokens that are shown, including the boundary before the first
PARAMETERS = 2000   # of a network, at most
VOCAB = 16


def _fits(subject: Subject) -> bool:
    if not subject.continues_text or len(subject.run.tokenizer) > VOCAB:
        return False
    tiny = sum(parameter.numel() for parameter in subject.model.parameters()) <= PARAMETERS
    return tiny and (is_recurrent(subject.model) or is_transformer(subject.model))


def _make(subjects: Sequence[Subject], text: str, options: Options) -> dict[str, Any]:
    subject = subjects[0]
    read = subject.read(text, LIMIT)
    unroll = unroll_rnn if is_recurrent(subject.model) else unroll_transformer
    with torch.no_grad():
        network = unroll(subject, read.tokens)
    return {
        "name": subject.name,
        "left_out": read.left_out,
        "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
        "order": network.order,
        "tokens": read.shown,
        "ids": read.tokens[0].tolist(),
        "vocab": subject.show(range(len(subject.run.tokenizer))),
        "nodes": network.nodes,
    }


VIEW = View(
    "unrolled", "Unrolled, with every number",
    "Each step computes one vector from others, from the embedding of a token to the softmax. Step forward and back "
    "with the buttons or the arrow keys; choose a number to see how it was computed.",
    _fits, _make,
    needs="a recurrent network or a gpt that predicts the next token, "
    f"with at most {PARAMETERS:,} parameters and a vocabulary of at most {VOCAB}",
)

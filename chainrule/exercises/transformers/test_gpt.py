"""Tests of the exercise gpt: the logits of chainrule's GPT with the same weights, and the laws of the protocol."""

import adapters
import torch

from chainrule.exercises.expect import same, snapshot
from chainrule.testing import check_language_model


def model_of(s):
    sizes = (int(s[name]) for name in ("vocab", "width", "heads", "layers", "context"))
    weights = {name.removeprefix("weights."): torch.from_numpy(s[name]) for name in s if name.startswith("weights.")}
    return adapters.gpt_model(*sizes, weights).eval()


@torch.no_grad()
def test_logits_are_those_of_chainrule():
    s = snapshot(__file__)
    model, tokens = model_of(s), torch.from_numpy(s["tokens"])
    logits, _ = model.step(tokens, model.start(len(tokens)))
    formula = "x + attention(norm1(x)), then x + W_2 gelu(W_1 norm2(x) + b_1) + b_2, then norm(x) Eᵀ"
    same(logits, s["logits"], "logits of step(tokens, start)", formula, tolerance=1e-4)


@torch.no_grad()
def test_token_by_token_the_logits_are_the_same():
    s = snapshot(__file__)
    model, tokens = model_of(s), torch.from_numpy(s["tokens"])
    state, found = model.start(len(tokens)), []
    for column in tokens.split(1, 1):
        logits, state = model.step(column, state)
        found.append(logits)
    formula = "the same logits as at once: positions go on, and all earlier tokens are attended to"
    same(torch.cat(found, 1), s["logits"], "logits token by token", formula, tolerance=1e-4)


def test_model_keeps_the_laws_of_the_protocol():
    check_language_model(model_of(snapshot(__file__)))

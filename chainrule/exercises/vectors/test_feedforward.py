"""Tests of the exercise feedforward: the logits of chainrule's model, and the laws of the protocol."""

import adapters
import torch

from chainrule.exercises.expect import same, snapshot
from chainrule.model import BOUNDARY
from chainrule.testing import check_language_model


def model_of(s):
    return adapters.feedforward_model(*(torch.from_numpy(s[name]) for name in ("E", "W", "b", "U", "c")))


def test_state_before_a_text_is_boundaries():
    s = snapshot(__file__)
    state = model_of(s).start(3)
    same(state, [[BOUNDARY] * int(s["order"] - 1)] * 3, "start(3)", "(B, n-1) boundaries")


def test_logits_are_those_of_chainrule():
    s = snapshot(__file__)
    model, tokens = model_of(s), torch.from_numpy(s["tokens"])
    logits, _ = model.step(tokens, model.start(len(tokens)))
    formula = "U tanh(W x + b) + c, x the embeddings of the window that ends with token t, oldest first"
    same(logits, s["logits"], "logits of step(tokens, start)", formula, tolerance=1e-5)


def test_state_is_the_last_tokens():
    s = snapshot(__file__)
    model, tokens = model_of(s), torch.from_numpy(s["tokens"])
    _, state = model.step(tokens, model.start(len(tokens)))
    same(state, tokens[:, 1 - int(s["order"]) :], "the state after step", "the last n - 1 tokens, oldest first")


def test_model_keeps_the_laws_of_the_protocol():
    check_language_model(model_of(snapshot(__file__)))

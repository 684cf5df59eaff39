"""Tests of the exercise lstm, against a snapshot that chainrule's cell made."""

import adapters
import numpy as np

from chainrule.exercises.expect import same, snapshot

GATES = ("f", "i", "o", "C")


def weights(s):
    return {gate: s[f"W_{gate}"] for gate in GATES}, {gate: s[f"b_{gate}"] for gate in GATES}


def test_one_step():
    s = snapshot(__file__)
    h, C = adapters.lstm_step(s["x"][:, 0], s["h0"], s["C0"], *weights(s))
    same(C, s["C1"], "C' of lstm_step", "f∗C + i∗C̃, C̃ = tanh(W_C·[h, x] + b_C)")
    same(h, s["h"][:, 0], "h' of lstm_step", "o∗tanh(C')")


def test_all_steps():
    s = snapshot(__file__)
    h, C = adapters.lstm(s["x"], s["h0"], s["C0"], *weights(s))
    same(h, s["h"], "h of lstm", "(B, T, H): h' of each step, which the next step reads")
    same(C, s["C"], "the last C of lstm", "f∗C + i∗C̃ of the last step")


def test_open_forget_gate_remembers():
    _, b = weights(snapshot(__file__))
    s = snapshot(__file__)
    W = {gate: np.zeros_like(s[f"W_{gate}"]) for gate in GATES}
    b = {"f": np.full_like(b["f"], 100), "i": np.full_like(b["i"], -100), "o": b["o"] * 0, "C": b["C"]}
    h, C = adapters.lstm(s["x"], s["h0"], s["C0"], W, b)
    same(C, s["C0"], "C after all steps with f = 1, i = 0", "C stays as it was: this is how an LSTM remembers")
    same(h[:, -1], np.tanh(s["C0"]) / 2, "h with f = 1, i = 0, o = ½", "tanh(C) / 2")

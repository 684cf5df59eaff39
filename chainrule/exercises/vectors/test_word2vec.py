"""Tests of the exercise word2vec, against a snapshot that chainrule made."""

import adapters
import numpy as np

from chainrule.exercises.expect import same, snapshot

LOSS = "-log σ(u · v) - Σ_k log σ(-u_k · v)"


def test_noise_distribution():
    s = snapshot(__file__)
    same(
        adapters.noise_distribution(s["counts"]), s["noise"], "noise_distribution(counts)", "count^0.75 / Σ count^0.75"
    )


def test_loss():
    s = snapshot(__file__)
    loss, *_ = adapters.negative_sampling(s["v"], s["u"], s["negatives"])
    same(loss, s["loss"], "the loss of negative_sampling", LOSS)


def test_gradients():
    s = snapshot(__file__)
    _, dv, du, dn = adapters.negative_sampling(s["v"], s["u"], s["negatives"])
    same(dv, s["dv"], "the gradient of v", "(σ(u · v) - 1) u + Σ_k σ(u_k · v) u_k: the slope of -log σ(z) is σ(z) - 1")
    same(du, s["du"], "the gradient of u", "(σ(u · v) - 1) v")
    same(dn, s["dn"], "the gradient of the negatives", "σ(u_k · v) v, one row for each")


def test_large_dot_products():
    v = np.array([40.0, 0.0])
    loss, dv, _, _ = adapters.negative_sampling(v, -v, np.stack([v, -v]))
    same(loss, 3200, "the loss where u · v = -1600", "-log σ(-1600) = 1600, for the pair and for one negative")
    same(dv, [80, 0], "the gradient of v there", "-u + u_1")


def test_step_of_gradient_descent():
    s = snapshot(__file__)
    inputs, outputs = s["inputs"].copy(), s["outputs"].copy()
    word, context = int(s["word"]), int(s["context"])
    loss = adapters.sgd_step(inputs, outputs, word, context, s["ids"], float(s["lr"]))
    same(loss, s["step_loss"], "the loss that sgd_step returns", LOSS)
    same(inputs, s["inputs_after"], "inputs after sgd_step", "only row `word` changes, by -lr · gradient of v")
    same(
        outputs,
        s["outputs_after"],
        "outputs after sgd_step",
        "rows of context and negatives; one drawn twice counts twice",
    )

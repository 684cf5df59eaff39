"""Tests of the exercise context, against a snapshot that chainrule's attention over a source made."""

import adapters
import numpy as np

from chainrule.exercises.expect import same, snapshot


def test_dot_scores():
    s = snapshot(__file__)
    same(
        adapters.dot_scores(s["q"], s["h"]), s["dot"], "dot_scores(q, h)", "e_ti = q_t · h_i, (B, T, S)", tolerance=1e-5
    )


def test_multiplicative_scores():
    s = snapshot(__file__)
    found = adapters.multiplicative_scores(s["q"], s["W"], s["h"])
    same(found, s["multiplicative"], "multiplicative_scores(q, W, h)", "e_ti = q_tᵀ W h_i", tolerance=1e-5)


def test_alignment():
    s = snapshot(__file__)
    found = adapters.align(s["multiplicative"], s["lengths"])
    same(found, s["alpha"], "align(e, lengths)", "softmax over the real source tokens", tolerance=1e-5)


def test_padding_has_no_weight():
    e = np.array([[[1.0, 2.0, 3.0, 9.0]]])
    alpha = adapters.align(e, np.array([3]))
    same(alpha[0, 0, 3], 0, "α of padding", "exactly 0")
    same(alpha.sum(-1), [[1]], "the sum of α", "1 without the padding")


def test_alignment_of_large_scores():
    alpha = adapters.align(np.array([[[1000.0, 1000.0, -1000.0]]]), np.array([3]))
    same(alpha, [[[0.5, 0.5, 0]]], "α of scores of 1000", "softmax(e - max e)")


def test_context_vectors():
    s = snapshot(__file__)
    found = adapters.context_vectors(s["alpha"], s["h"])
    same(found, s["context"], "context_vectors(alpha, h)", "c_t = Σ_i α_ti h_i", tolerance=1e-5)

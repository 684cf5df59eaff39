"""Tests of the exercise bigram, against a snapshot that chainrule made."""

import adapters
import numpy as np

from chainrule.exercises.expect import same, same_list, snapshot


def test_bigram_mle_is_the_relative_frequency():
    s = snapshot(__file__)
    p = adapters.bigram_mle(s["tokens"], int(s["V"]))
    same(p, s["p"], "bigram_mle(tokens, V)", "p[v, w] = c(v w) / c(v ·), zero where nothing follows v")


def test_cows_eat_corn():
    words = {"<s>": 0, "cows": 1, "eat": 2, "corn": 3, "grass": 4, "hay": 5, "if": 6, "which": 7}
    text = [0]
    for word, times in (("corn", 4), ("grass", 3), ("hay", 2), ("if", 1), ("which", 1)):
        text += [1, 2, words[word], 0] * times
    p = adapters.bigram_mle(np.array(text), len(words))
    same(p[2], np.array([0, 0, 0, 4, 3, 2, 1, 1]) / 11, "p(w | eat) of eleven sentences", "corn 4/11, grass 3/11, …")


def test_softmax_of_beta_y():
    s = snapshot(__file__)
    for beta, expected in zip(s["betas"], s["tempered"]):
        same(adapters.softmax(s["y"], float(beta)), expected, f"softmax(y, beta={beta:g})", "exp(β y) / Σ exp(β y)")


def test_softmax_with_beta_0_is_uniform_and_with_inf_the_argmax():
    y = np.array([1.0, 3.0, 3.0, -2.0])
    same(adapters.softmax(y, 0.0), np.full(4, 0.25), "softmax(y, beta=0)", "1/V each")
    same(adapters.softmax(y, np.inf), [0, 0.5, 0.5, 0], "softmax(y, beta=inf)", "the largest logits share 1")


def test_softmax_does_not_overflow():
    y = np.array([1000.0, 999.0, -1000.0])
    e = np.exp([-1.0])[0]
    same(adapters.softmax(y, 1.0), [1 / (1 + e), e / (1 + e), 0], "softmax of large logits", "softmax(y - max y)")


def test_roll_of_a_weighted_die():
    p = np.array([0.0, 0.25, 0.0, 0.5, 0.25])
    for u, side in ((0.0, 1), (0.1, 1), (0.25, 3), (0.7, 3), (0.75, 4), (0.999, 4)):
        found = adapters.roll(p, u)
        same(found, side, f"roll(p, u={u})", f"the first w with p_0 + … + p_w > u, for p = {p.tolist()}")


def test_write_feeds_back_what_was_rolled():
    s = snapshot(__file__)
    for u, length in zip(s["u"], s["lengths"]):
        found = adapters.write(s["p"], u)
        expected = s["texts"][s["u"].tolist().index(u.tolist())][:length].tolist()
        same_list(found, expected, "write(p, u)", "roll p[0], then the row of each rolled token, until the boundary")

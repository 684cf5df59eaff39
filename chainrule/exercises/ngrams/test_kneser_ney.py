"""Tests of the exercise kneser-ney, against a snapshot that chainrule made."""

import adapters
import numpy as np

from chainrule.exercises.expect import same, snapshot


def test_discounts_come_from_counts_of_counts():
    s = snapshot(__file__)
    same(adapters.discounts(s["counts"]), s["discounts"], "discounts(counts)", "D_j = j - (j + 1) Y n_{j+1} / n_j")


def test_discounts_of_a_small_text_are_the_usual_ones():
    same(adapters.discounts(np.array([1, 1, 2, 5])), [0, 0.5, 1, 1.5], "discounts where n₃ = 0", "0, ½, 1, 1½")


def test_continuation_counts_are_types_not_tokens():
    c = np.array([[0, 3, 1], [0, 1, 0], [2, 7, 0]])
    same(adapters.continuation_counts(c), [1, 3, 1], "continuation_counts(c)", "the number of v with c[v, w] > 0")


def test_unigram_uses_continuations_and_is_above_the_uniform():
    s = snapshot(__file__)
    formula = "p(w) = (N(w) - D(N(w))) / N(·) + γ / V"
    same(adapters.unigram(s["continuations"]), s["unigram"], "unigram(continuations)", formula)


def test_kneser_ney_is_chainrules():
    s = snapshot(__file__)
    p = adapters.kneser_ney(s["tokens"], int(s["V"]))
    formula = "(c(v w) - D(c(v w))) / c(v ·) + γ(v) p(w)"
    same(p, s["p"], "kneser_ney(tokens, V)", formula, tolerance=1e-5)


def test_kneser_ney_sums_to_one_and_leaves_no_word_impossible():
    s = snapshot(__file__)
    p = np.asarray(adapters.kneser_ney(s["tokens"], int(s["V"])))
    same(p.sum(1), np.ones(int(s["V"])), "the sum of p(w | v) over w", "1 for each v")
    assert (p > 0).all(), f"p(w | v) is {p.min()} somewhere; smoothing leaves every word a probability above 0"

"""Tests of the exercise viterbi, against a snapshot that chainrule made and against a search of all paths."""

from itertools import product

import adapters
import numpy as np

from chainrule.exercises.expect import same, same_list, snapshot

FORMULA = "δ_s(t) = b_{s,xt} max_{s'} a_{s',s} δ_{s'}(t-1); backtrack from argmax_s δ_s(T)"


def log_p(pi, a, b, x, path):
    moves = [pi[path[0]], *(a[path[t - 1], path[t]] for t in range(1, len(x)))]
    return float(np.log(moves).sum() + np.log([b[s, o] for s, o in zip(path, x)]).sum())


def test_path_of_a_long_text():
    s = snapshot(__file__)
    path, score = adapters.viterbi(s["pi"], s["a"], s["b"], s["x"])
    same_list(np.asarray(path).tolist(), s["path"].tolist(), "the path of viterbi(pi, a, b, x)", FORMULA)
    same(score, s["log_p"], "log p of viterbi(pi, a, b, x)", "max_s log δ_s(T)")


def test_path_is_the_best_of_all():
    s = snapshot(__file__)
    pi, a, b = s["pi"], s["a"], s["b"]
    for x in s["short"]:
        best = max(product(range(len(pi)), repeat=len(x)), key=lambda path: log_p(pi, a, b, x, path))
        path, score = adapters.viterbi(pi, a, b, x)
        same_list(np.asarray(path).tolist(), list(best), f"the path of x = {x.tolist()}", FORMULA)
        same(score, log_p(pi, a, b, x, best), f"log p of x = {x.tolist()}", "max_s log δ_s(T)")


def test_impossible_transitions_are_not_taken():
    pi, a = np.array([1.0, 0.0]), np.array([[0.5, 0.5], [0.0, 1.0]])
    b = np.array([[0.4, 0.6], [0.9, 0.1]])
    path, score = adapters.viterbi(pi, a, b, np.array([0, 0, 1, 1]))
    same_list(np.asarray(path).tolist(), [0, 0, 0, 0], "the path where state 1 is never left", FORMULA)
    same(
        score, np.log(0.4 * 0.5 * 0.4 * 0.5 * 0.6 * 0.5 * 0.6), "its log p", "the product of π, a and b along the path"
    )

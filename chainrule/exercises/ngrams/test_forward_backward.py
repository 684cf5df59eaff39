"""Tests of the exercise forward-backward, against a snapshot that chainrule made and against sums over all paths."""

from itertools import product

import adapters
import numpy as np

from chainrule.exercises.expect import same, snapshot


def tables(s):
    return s["pi"], s["a"], s["b"]


def test_forward_messages_and_scales():
    s = snapshot(__file__)
    alpha, c = adapters.forward(*tables(s), s["x"])
    formula = "α_s(t) = b_{s,xt} Σ_{s'} α_{s'}(t-1) a_{s',s} / c_t, with α(1) from π"
    same(alpha, s["alpha"], "alpha of forward(pi, a, b, x)", formula)
    same(c, s["c"], "c of forward(pi, a, b, x)", "what α(t) is divided by, to sum to 1")


def test_likelihood_is_the_sum_over_all_paths():
    s = snapshot(__file__)
    (pi, a, b), x = tables(s), s["x"][:5]
    total = 0.0
    for path in product(range(len(pi)), repeat=len(x)):
        p = pi[path[0]] * b[path[0], x[0]]
        for t in range(1, len(x)):
            p *= a[path[t - 1], path[t]] * b[path[t], x[t]]
        total += p
    _, c = adapters.forward(pi, a, b, x)
    same(
        adapters.log_likelihood(c), np.log(total), "log_likelihood(c)", "the log of the sum over all paths: Σ_t log c_t"
    )


def test_long_text_does_not_underflow():
    s = snapshot(__file__)
    _, c = adapters.forward(*tables(s), s["long"])
    same(
        adapters.log_likelihood(c), s["long_log_likelihood"], "log_likelihood of 1,500 symbols", "scale α at every step"
    )


def test_backward_messages():
    s = snapshot(__file__)
    beta = adapters.backward(s["a"], s["b"], s["x"], s["c"])
    formula = "β_s(t) = Σ_{s'} a_{s,s'} b_{s',x(t+1)} β_{s'}(t+1) / c_{t+1}"
    same(beta, s["beta"], "backward(a, b, x, c)", formula)


def test_posteriors():
    s = snapshot(__file__)
    same(adapters.posteriors(s["alpha"], s["beta"]), s["gamma"], "posteriors(alpha, beta)", "γ = α β")


def test_expected_transitions():
    s = snapshot(__file__)
    xi = adapters.expected_transitions(s["alpha"], s["beta"], s["c"], s["a"], s["b"], s["x"])
    formula = "Σ_t α_s(t) a_{s,s'} b_{s',x(t+1)} β_{s'}(t+1) / c_{t+1}"
    same(xi, s["xi"], "expected_transitions(…)", formula)

"""Tests of the exercise beam-search, against chainrule's beam search and against a search of all texts."""

from itertools import product

import adapters
import numpy as np

from chainrule.exercises.expect import same, same_list, snapshot


def model(s):
    """log p of the next token by the two tokens before it; boundaries stand before the text."""
    table = s["table"]

    def log_probs(tokens):
        before = (0, 0, *tokens)
        return table[before[-2], before[-1]]

    return log_probs


def log_p(log_probs, text):
    return sum(float(log_probs(text[:n])[token]) for n, token in enumerate((*text, 0)))


def test_length_penalty():
    same(adapters.length_penalty(7, 1.0), 2, "length_penalty(7, 1)", "((5 + n) / 6)^alpha")
    same(adapters.length_penalty(7, 0.5), 2**0.5, "length_penalty(7, 0.5)", "((5 + n) / 6)^alpha")
    same(adapters.length_penalty(9, 0.0), 1, "length_penalty(9, 0)", "((5 + n) / 6)^alpha")


def test_best_texts_are_those_of_chainrule():
    s = snapshot(__file__)
    for width, alpha, text, score in zip(s["widths"], s["alphas"], s["texts"].tolist(), s["scores"]):
        found = adapters.beam_search(model(s), int(width), float(alpha), int(s["limit"]))
        assert found, f"beam_search with width {width} and alpha {alpha} found no text"
        what = f"the best text with width {width}, alpha {alpha:g}"
        same_list(map(int, found[0][0]), map(int, text.split()), what, "the best of the finished, by log p / penalty")
        same(
            found[0][1],
            score,
            f"the score with width {width}, alpha {alpha:g}",
            "log p / ((5 + n) / 6)^alpha",
            tolerance=1e-5,
        )


def test_texts_are_finished_and_ranked():
    s = snapshot(__file__)
    found = adapters.beam_search(model(s), 4, 0.0, int(s["limit"]))
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True), f"the scores are {scores}; the best text comes first"
    for text, score in found:
        assert 0 not in text, f"{text} contains the boundary, which is not part of a text"
        same(
            score,
            log_p(model(s), tuple(text)),
            f"the score of {text}",
            "log p with its end, over the penalty",
            tolerance=1e-5,
        )


def test_wide_beam_finds_the_best_of_all_texts():
    s = snapshot(__file__)
    limit, vocab = 3, s["table"].shape[-1]
    every = [text for n in range(limit + 1) for text in product(range(1, vocab), repeat=n)]
    best = max(every, key=lambda text: log_p(model(s), text))
    found = adapters.beam_search(model(s), vocab**limit, 0.0, limit)
    same_list(found[0][0], best, "the best text of a beam as wide as there are texts", "the most likely of all")
    assert len(found) == len(every), f"{len(found)} finished texts; there are {len(every)} of at most {limit} tokens"


def test_width_1_is_greedy():
    s = snapshot(__file__)
    greedy, limit = (), int(s["limit"])
    while len(greedy) < limit and (token := int(np.argmax(model(s)(greedy)))):
        greedy = (*greedy, token)
    found = adapters.beam_search(model(s), 1, 0.0, limit)
    same_list(found[0][0], greedy, "the text of width 1", "always the most likely token")

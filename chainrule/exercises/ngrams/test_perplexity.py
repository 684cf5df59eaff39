"""Tests of the exercise perplexity, against a snapshot that chainrule made."""

import adapters
import numpy as np

from chainrule.exercises.expect import same, snapshot


def test_cross_entropy_is_a_mean_in_nats():
    s = snapshot(__file__)
    same(adapters.cross_entropy(s["log_p"]), s["nats"], "cross_entropy(log_p)", "-1/T Σ log p")


def test_perplexity_is_the_exponential_of_the_mean():
    s = snapshot(__file__)
    same(adapters.perplexity(s["log_p"]), s["perplexity"], "perplexity(log_p)", "exp(-1/T Σ log p)")


def test_perplexity_of_the_uniform_distribution_is_the_number_of_tokens():
    same(adapters.perplexity(np.log(np.full(12, 1 / 50))), 50, "perplexity of p = 1/50", "50")


def test_perplexity_is_infinite_where_a_token_is_impossible():
    same(adapters.perplexity(np.array([-1.0, -np.inf])), np.inf, "perplexity with a p of 0", "inf")


def test_bits_per_byte_counts_bits_and_bytes():
    s = snapshot(__file__)
    formula = "Σ -log2 p / bytes of the text in UTF-8"
    same(adapters.bits_per_byte(s["log_p"], str(s["text"])), s["bits_per_byte"], "bits_per_byte(log_p, text)", formula)


def test_word_perplexity_spreads_the_bits_over_words():
    s = snapshot(__file__)
    text, bits = str(s["text"]), float(s["bits_per_byte"])
    found = adapters.word_perplexity(bits, text)
    same(found, s["word_perplexity"], "word_perplexity", "2 ** (bits per byte · bytes / words)", tolerance=1e-5)
    same(adapters.word_perplexity(2.0, "ab cd\nef"), 2 ** (16 / 3), "word_perplexity(2, 'ab cd\\nef')", "2^(16/3)")

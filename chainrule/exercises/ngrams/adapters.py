"""Adapters of the lesson ngrams: the only file that binds your code to the tests; yours to change."""


def bigram_mle(tokens, V):
    from bigram import bigram_mle

    return bigram_mle(tokens, V)


def softmax(y, beta):
    from bigram import softmax

    return softmax(y, beta)


def roll(p, u):
    from bigram import roll

    return roll(p, u)


def write(p, u):
    from bigram import write

    return write(p, u)


def cross_entropy(log_p):
    from perplexity import cross_entropy

    return cross_entropy(log_p)


def perplexity(log_p):
    from perplexity import perplexity

    return perplexity(log_p)


def bits_per_byte(log_p, text):
    from perplexity import bits_per_byte

    return bits_per_byte(log_p, text)


def word_perplexity(bits_per_byte, text):
    from perplexity import word_perplexity

    return word_perplexity(bits_per_byte, text)


def discounts(counts):
    from kneser_ney import discounts

    return discounts(counts)


def continuation_counts(c):
    from kneser_ney import continuation_counts

    return continuation_counts(c)


def unigram(continuations):
    from kneser_ney import unigram

    return unigram(continuations)


def kneser_ney(tokens, V):
    from kneser_ney import kneser_ney

    return kneser_ney(tokens, V)


def forward(pi, a, b, x):
    from forward_backward import forward

    return forward(pi, a, b, x)


def log_likelihood(c):
    from forward_backward import log_likelihood

    return log_likelihood(c)


def backward(a, b, x, c):
    from forward_backward import backward

    return backward(a, b, x, c)


def posteriors(alpha, beta):
    from forward_backward import posteriors

    return posteriors(alpha, beta)


def expected_transitions(alpha, beta, c, a, b, x):
    from forward_backward import expected_transitions

    return expected_transitions(alpha, beta, c, a, b, x)


def viterbi(pi, a, b, x):
    from viterbi import viterbi

    return viterbi(pi, a, b, x)

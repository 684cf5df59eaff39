"""Exercise viterbi: the most probable states of a hidden Markov model (Viterbi 1967).

π (S,): p(first state); a (S, S): a[s', s] = p(next state s | state s'); b (S, V): b[s, o] = p(symbol o | state s);
x (T,): symbols. Shapes: T symbols, S states, V vocabulary.
"""

import numpy as np


def viterbi(pi: np.ndarray, a: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, float]:
    """The states (T,) of the most probable path, and log p(x, path).

        δ_s(1) = π_s b_{s,x1}        δ_s(t) = b_{s,xt} max_{s'} a_{s',s} δ_{s'}(t-1)        Δ_s(t): the argmax s'

    The path ends in argmax_s δ_s(T) and follows the backpointers Δ to the first symbol. Work with logarithms, so that a
    long text does not underflow; a probability of 0 has the logarithm -inf.
    """
    raise NotImplementedError

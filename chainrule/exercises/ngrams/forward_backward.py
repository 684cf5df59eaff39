"""Exercise forward-backward: α, β, likelihood and posteriors of a hidden Markov model (Rabiner 1989).

π (S,): p(first state); a (S, S): a[s', s] = p(next state s | state s'); b (S, V): b[s, o] = p(symbol o | state s);
x (T,): symbols. α and β are scaled at every step, so that a text of any length does not underflow: c_t is
p(x_t | x_1 … x_{t-1}). Shapes: T symbols, S states, V vocabulary.
"""

import numpy as np


def forward(pi: np.ndarray, a: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """α (T, S), whose rows sum to 1, and the scales c (T,):

        α_s(1) = π_s b_{s,x1} / c_1        α_s(t) = b_{s,xt} Σ_{s'} α_{s'}(t-1) a_{s',s} / c_t

    c_t is what makes the row sum to 1.
    """
    raise NotImplementedError


def log_likelihood(c: np.ndarray) -> float:
    """log p(x_1 … x_T) = Σ_t log c_t, by the chain rule."""
    raise NotImplementedError


def backward(a: np.ndarray, b: np.ndarray, x: np.ndarray, c: np.ndarray) -> np.ndarray:
    """β (T, S), scaled by the same c:

        β_s(T) = 1        β_s(t) = Σ_{s'} a_{s,s'} b_{s',x(t+1)} β_{s'}(t+1) / c_{t+1}
    """
    raise NotImplementedError


def posteriors(alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """γ (T, S): γ_s(t) = p(state s at t | the whole text) = α_s(t) β_s(t)."""
    raise NotImplementedError


def expected_transitions(
    alpha: np.ndarray, beta: np.ndarray, c: np.ndarray, a: np.ndarray, b: np.ndarray, x: np.ndarray
) -> np.ndarray:
    """Σ_t ξ(t) (S, S), what the M step of Baum–Welch needs:

        ξ_{s,s'}(t) = α_s(t) a_{s,s'} b_{s',x(t+1)} β_{s'}(t+1) / c_{t+1},        t = 1 … T-1
    """
    raise NotImplementedError

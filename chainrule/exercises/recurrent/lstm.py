"""Exercise lstm: the LSTM cell (Hochreiter & Schmidhuber 1997), with the gates f, i, o.

    f, i, o = σ(W_f·[h, x] + b_f), σ(W_i·[h, x] + b_i), σ(W_o·[h, x] + b_o)        C̃ = tanh(W_C·[h, x] + b_C)
    C' = f∗C + i∗C̃        h' = o∗tanh(C')

[h, x] is h followed by x. W and b are dicts with the keys "f", "i", "o", "C".
Shapes: B rows, T steps, D inputs, H hidden units; each W (H, H + D), each b (H,).
"""

import numpy as np


def lstm_step(
    x: np.ndarray, h: np.ndarray, C: np.ndarray, W: dict[str, np.ndarray], b: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """x (B, D), h (B, H), C (B, H) -> h' (B, H), C' (B, H)."""
    raise NotImplementedError


def lstm(
    x: np.ndarray, h0: np.ndarray, C0: np.ndarray, W: dict[str, np.ndarray], b: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """x (B, T, D) -> h (B, T, H), the hidden vectors after each step, and the last C (B, H)."""
    raise NotImplementedError

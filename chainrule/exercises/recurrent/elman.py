"""Exercise elman: the Elman network, and backpropagation through time (BPTT) by hand, without autograd.

    h_t = tanh(W h_{t-1} + U x_t + b_h)        y_t = V h_t + b_y        ℓ = Σ_t -log softmax(y_t)[target_t]

Shapes: T steps, D inputs, H hidden units, O outputs; W (H, H), U (H, D), b_h (H,), V (O, H), b_y (O,), h0 (H,),
x (T, D).
"""

import numpy as np


def elman_forward(
    W: np.ndarray, U: np.ndarray, b_h: np.ndarray, V: np.ndarray, b_y: np.ndarray, h0: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """h (T, H) and y (T, O), by the formulas above: the same W, U, V at every step."""
    raise NotImplementedError


def elman_loss(y: np.ndarray, targets: np.ndarray) -> float:
    """(T, O) logits, (T,) targets -> ℓ = Σ_t -log softmax(y_t)[target_t]: a sum over time, not a mean."""
    raise NotImplementedError


def bptt(
    W: np.ndarray, U: np.ndarray, b_h: np.ndarray, V: np.ndarray, b_y: np.ndarray, h0: np.ndarray, x: np.ndarray,
    targets: np.ndarray,
) -> dict[str, np.ndarray]:
    """The gradients of ℓ: {"W": (H, H), "U": (H, D), "b_h": (H,), "V": (O, H), "b_y": (O,), "h0": (H,)}.

    From the last step to the first, with ∂ℓ/∂y_t = softmax(y_t) - onehot(target_t):

        ∂ℓ/∂h_t = Vᵀ ∂ℓ/∂y_t + Wᵀ ∂ℓ/∂a_{t+1}        ∂ℓ/∂a_t = (1 - h_t²) ∗ ∂ℓ/∂h_t        (a_t: what tanh is taken of)

    Every step adds its part to the gradients of the shared weights: ∂ℓ/∂W = Σ_t ∂ℓ/∂a_t h_{t-1}ᵀ, and so on.
    """
    raise NotImplementedError

"""Tests of the exercise elman, against a snapshot that chainrule's cell and autograd made."""

import adapters
import numpy as np

from chainrule.exercises.expect import same, snapshot

WEIGHTS = ("W", "U", "b_h", "V", "b_y", "h0")
FORMULAS = {
    "W": "Σ_t ∂ℓ/∂a_t h_{t-1}ᵀ",
    "U": "Σ_t ∂ℓ/∂a_t x_tᵀ",
    "b_h": "Σ_t ∂ℓ/∂a_t",
    "V": "Σ_t ∂ℓ/∂y_t h_tᵀ",
    "b_y": "Σ_t ∂ℓ/∂y_t",
    "h0": "Wᵀ ∂ℓ/∂a_1",
}


def given(s):
    return [s[name] for name in WEIGHTS] + [s["x"]]


def test_forward():
    s = snapshot(__file__)
    h, y = adapters.elman_forward(*given(s))
    same(h, s["h"], "h of elman_forward", "h_t = tanh(W h_{t-1} + U x_t + b_h)")
    same(y, s["y"], "y of elman_forward", "y_t = V h_t + b_y")


def test_loss_is_a_sum():
    s = snapshot(__file__)
    same(
        adapters.elman_loss(s["y"], s["targets"]),
        s["loss"],
        "elman_loss(y, targets)",
        "Σ_t -log softmax(y_t)[target_t]",
    )


def test_loss_of_large_logits():
    y = np.array([[1000.0, 0.0], [0.0, 1000.0]])
    same(adapters.elman_loss(y, np.array([0, 0])), 1000, "the loss of logits of 1000", "subtract the maximum first")


def test_gradients_through_time():
    s = snapshot(__file__)
    found = adapters.bptt(*given(s), s["targets"])
    assert isinstance(found, dict), f"bptt returns a dict of gradients, not {type(found).__name__}"
    assert set(found) == set(WEIGHTS), f"bptt returns the gradients of {sorted(WEIGHTS)}, not of {sorted(found)}"
    for name in WEIGHTS:
        same(found[name], s[f"d{name}"], f"the gradient of {name}", FORMULAS[name])


def test_gradient_is_that_of_finite_differences():
    s = snapshot(__file__)
    found = adapters.bptt(*given(s), s["targets"])["W"]
    for row, column in ((0, 1), (2, 0)):
        losses = []
        for step in (1e-5, -1e-5):
            weights = given(s)
            weights[0] = s["W"].copy()
            weights[0][row, column] += step
            losses.append(adapters.elman_loss(adapters.elman_forward(*weights)[1], s["targets"]))
        slope = (losses[0] - losses[1]) / 2e-5
        same(
            found[row, column],
            slope,
            f"the gradient of W[{row}, {column}]",
            "(ℓ(W + ε) - ℓ(W - ε)) / 2ε",
            tolerance=1e-4,
        )

"""SimPO: simple preference optimisation (Meng et al. 2024, arXiv:2405.14734). It needs no reference.

    loss = -log σ(β ℓ⁺ - β ℓ⁻ - γ),   ℓ = (1/n) log π(y)

The reward is the mean log p of an answer's tokens, which is what decoding compares; γ is the margin to be reached.
"""

from torch import Tensor

from chainrule.preferences.losses.dpo import smoothed_log_loss


def simpo(
    chosen: Tensor, rejected: Tensor, beta: float, gamma: float, chosen_tokens: Tensor, rejected_tokens: Tensor,
    label_smoothing: float = 0.0,
) -> Tensor:
    """(B,) of log p of the answers and the number of their tokens, each (B,)."""
    first, second = chosen / chosen_tokens.clamp(min=1), rejected / rejected_tokens.clamp(min=1)
    return smoothed_log_loss(beta * (first - second) - gamma, label_smoothing)

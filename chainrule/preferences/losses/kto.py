"""KTO: Kahneman–Tversky optimisation (Ethayarajh et al. 2024, arXiv:2402.01306). It learns from single rated answers.

    liked:  w⁺ (1 - σ(β (r - z)))      not liked:  w⁻ (1 - σ(β (z - r)))      r = log π(y)/π₀(y)

z ≥ 0 estimates KL(π ‖ π₀) from prompts with answers to other prompts; it has no gradient.
"""

from torch import Tensor


def kto(
    log_probs: Tensor, reference: Tensor, labels: Tensor, kl: Tensor, beta: float = 0.1,
    desirable: float = 1.0, undesirable: float = 1.0,
) -> Tensor:
    """(B,) of log p under the policy and the reference, whether each answer was liked, and z."""
    reward = log_probs - reference
    liked = desirable * (1 - (beta * (reward - kl)).sigmoid())
    not_liked = undesirable * (1 - (beta * (kl - reward)).sigmoid())
    return liked.where(labels, not_liked)

"""DPO: direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290).

    loss = -log σ(β Δ),   Δ = log π(y⁺)/π₀(y⁺) - log π(y⁻)/π₀(y⁻)

β log π/π₀ is the reward for which the policy π is optimal under a KL penalty β to the reference π₀. With label
smoothing ε the pair is taken to be the other way round with probability ε: -(1 - ε) log σ(β Δ) - ε log σ(-β Δ).
"""

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo(
    chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """(B,) of log p of the answers under the policy and under the reference, each (B,)."""
    difference = (chosen - ref_chosen) - (rejected - ref_rejected)
    return smoothed_log_loss(beta * difference, label_smoothing)


def smoothed_log_loss(logits: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """-log σ, and with label smoothing a share of -log σ of the opposite."""
    loss = -logsigmoid(logits)
    if not label_smoothing:
        return loss
    return (1 - label_smoothing) * loss - label_smoothing * logsigmoid(-logits)

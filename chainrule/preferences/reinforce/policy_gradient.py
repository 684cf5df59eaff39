"""Policy gradients with whole answers as actions: REINFORCE with a baseline (Williams 1992) and RLOO (Ahmadian 2024).

    REINFORCE    loss = -A · log π(answer)                       gradient: -A · ∇ log π(answer)
    RLOO         loss = -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A)       ρ = π(answer) / π_old(answer)

At the first step after a rollout ρ is 1, and the gradient of both is the same. A KL penalty is part of the reward.

Shapes: B answers, T tokens.
"""

import torch
from torch import Tensor

from chainrule.preferences.reinforce.ppo import clipped_objective


def reinforce_loss(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """(B, T) log-probabilities of the tokens, 0 outside of answers; (B,) -> (B,)"""
    return -advantages * log_probs.sum(1)


def rloo_loss(log_probs: Tensor, old: Tensor, advantages: Tensor, clip_ratio: float = 0.2) -> tuple[Tensor, Tensor]:
    """(B, T), (B, T), (B,) -> (B,) the loss of each answer, and (B,) whether its ratio was clipped."""
    ratio = torch.exp(log_probs.sum(1) - old.sum(1))
    objective, clipped = clipped_objective(ratio, advantages, clip_ratio)
    return -objective, clipped

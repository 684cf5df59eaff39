"""GRPO: PPO's clipping with group-normalised advantages in the place of a value head (Shao et al. 2024).

    l_t = -min(ρ_t A, clip(ρ_t, 1 - ε, 1 + ε) A) + β · ρ_t · k3_t         ρ_t = π(token_t) / π_old(token_t)

The factor ρ of the KL term, which is 1 at first but has a gradient, makes its mean gradient that of KL(π, π_ref) of
each token (DeepSeek-V3.2, 2025); without it, as in the paper of GRPO, it is that of KL(π_ref, π).

    grpo       mean over answers of the mean over their tokens (the paper)
    dr_grpo    the sum over all tokens, divided by answers · train.answer_tokens (Liu et al. 2025): no bias by length
    dapo       the mean over all tokens of the batch (Yu et al. 2025)

The definitions are those of TRL. Shapes: B answers, T tokens.
"""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from chainrule.preferences.reinforce.kl import Estimator, estimate_kl
from chainrule.preferences.reinforce.ppo import ppo_loss

LossType: TypeAlias = Literal["grpo", "dr_grpo", "dapo"]


def grpo_token_loss(
    log_probs: Tensor, old: Tensor, advantages: Tensor, reference: Tensor | None = None, *, beta: float = 0.0,
    clip_ratio: float = 0.2, estimator: Estimator = "k3", corrected: bool = True,
) -> tuple[Tensor, Tensor]:
    """(B, T) log-probabilities and (B,) advantages -> (B, T) the loss of each token, and whether it was clipped."""
    loss, clipped = ppo_loss(log_probs, old, advantages[:, None], clip_ratio)
    if beta and reference is not None:
        kl = estimate_kl(log_probs, reference, estimator)
        if corrected and estimator == "k3":                # k2 has the right mean gradient as it is
            kl = kl * torch.exp(log_probs - old)
        loss = loss + beta * kl
    return loss, clipped


def grpo_sum(token_loss: Tensor, mask: Tensor, loss_type: LossType, answer_tokens: int) -> tuple[Tensor, Tensor]:
    """(B, T) -> a sum and a count, whose quotient is the loss: so a batch may be cut into micro-batches."""
    token_loss = token_loss.where(mask, 0.0)
    if loss_type == "dapo":
        return token_loss.sum(), mask.sum()
    length = mask.sum(1).clamp(min=1) if loss_type == "grpo" else answer_tokens
    return (token_loss.sum(1) / length).sum(), mask.any(1).sum()

"""PPO: proximal policy optimization with a value head (Schulman et al. 2017; for language models Ziegler et al. 2019).

    ρ_t = π(token_t) / π_old(token_t)
    policy loss   -min(ρ_t A_t, clip(ρ_t, 1 - ε, 1 + ε) A_t)
    value loss    ½ max((V_t - R_t)², (clip(V_t, V_old ± ε_v) - R_t)²)          R_t = A_t + V_old
    reward        r_t = -β · k1_t, and at the last token also the answer's reward

Advantages A_t are generalised advantage estimates, whitened over the rollout. Shapes: B answers, T tokens.
"""

import torch
from torch import Tensor


def clipped_objective(ratio: Tensor, advantages: Tensor, clip_ratio: float) -> tuple[Tensor, Tensor]:
    """min(ρ A, clip(ρ) A), and where the clipping took the gradient away."""
    bounded = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    outside = ((ratio > 1 + clip_ratio) & (advantages > 0)) | ((ratio < 1 - clip_ratio) & (advantages < 0))
    return torch.minimum(ratio * advantages, bounded * advantages), outside


def ppo_loss(log_probs: Tensor, old: Tensor, advantages: Tensor, clip_ratio: float = 0.2) -> tuple[Tensor, Tensor]:
    """(B, T) each -> (B, T) the policy loss of each token, and (B, T) whether its ratio was clipped."""
    objective, clipped = clipped_objective(torch.exp(log_probs - old), advantages, clip_ratio)
    return -objective, clipped


def value_loss(values: Tensor, old: Tensor, returns: Tensor, value_clip: float = 0.2) -> Tensor:
    """(B, T) each -> (B, T)"""
    bounded = old + (values - old).clamp(-value_clip, value_clip)
    return torch.maximum((values - returns).square(), (bounded - returns).square()) / 2


def token_rewards(rewards: Tensor, kl: Tensor, mask: Tensor, beta: float) -> Tensor:
    """(B,) rewards of answers, (B, T) KL of their tokens -> (B, T): -β · KL, and at the last token the reward too."""
    after = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1)
    last = mask & ~after
    return (-beta * kl).where(mask, 0.0) + rewards[:, None] * last


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(R - V) / Var(R) over the tokens: 1, the values are right; 0, no better than their mean."""
    def variance(numbers: Tensor) -> Tensor:
        mean = numbers.where(mask, 0).sum() / mask.sum().clamp(min=1)
        return (numbers - mean).where(mask, 0).square().sum()

    return 1 - variance(returns - values) / variance(returns).clamp(min=1e-8)

"""Advantages: how much better an answer, or a token, was than expected. All are computed once for each rollout.

    baseline         A_i = r_i - b                  b: a moving average of earlier rewards (REINFORCE, Williams 1992)
    leave one out    A_i = r_i - mean of the other answers to the same prompt (RLOO, Ahmadian et al. 2024)
    group            A_i = (r_i - mean) / (std + ε) over the answers to the same prompt (GRPO, Shao et al. 2024)
    GAE              A_t = δ_t + γλ A_{t+1},  δ_t = r_t + γ V_{t+1} - V_t (PPO; Schulman et al. 2016)

Answers to one prompt stand next to each other. Shapes: B answers, T tokens.
"""

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Scale: TypeAlias = Literal["group", "batch", "none"]

EPSILON = 1e-4         # added to a standard deviation, as in TRL
BASELINE_DECAY = 0.9   # of the moving average of rewards, for each rollout


def next_baseline(baseline: Tensor, rewards: Tensor) -> Tensor:
    """The moving average of rewards after a rollout; a baseline that is nan has seen none yet."""
    mean = rewards.mean()
    return torch.where(baseline.isnan(), mean, BASELINE_DECAY * baseline + (1 - BASELINE_DECAY) * mean)


def leave_one_out(rewards: Tensor, generations: int) -> Tensor:
    """(B,) -> (B,): each reward minus the mean of the other `generations` - 1 of its group."""
    groups = rewards.view(-1, generations)
    others = (groups.sum(1, keepdim=True) - groups) / (generations - 1)
    return (groups - others).flatten()


def group_normalised(rewards: Tensor, generations: int, scale: Scale = "group") -> Tensor:
    """(B,) -> (B,): minus the mean of the group, divided by the standard deviation of the group, of all, or by 1."""
    groups = rewards.view(-1, generations)
    centred = groups - groups.mean(1, keepdim=True)
    if scale == "none":
        return centred.flatten()
    deviation = groups.std(1, keepdim=True) if scale == "group" else rewards.std()
    return (centred / (deviation + EPSILON)).flatten()


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, discount: float = 1.0, gae_lambda: float = 0.95
) -> Tensor:
    """(B, T) rewards and values of the tokens of answers -> (B, T) advantages; 0 where the mask is False.

    The tokens of an answer stand together; what follows its last one is worth 0. Returns are advantages + values.
    """
    values, rewards = values.where(mask, 0.0), rewards.where(mask, 0.0)
    advantages, after = torch.zeros_like(values), values.new_zeros(len(values))
    value_after = torch.zeros_like(after)
    for step in reversed(range(values.shape[1])):
        delta = rewards[:, step] + discount * value_after - values[:, step]
        after = torch.where(mask[:, step], delta + discount * gae_lambda * after, 0.0)
        advantages[:, step], value_after = after, values[:, step]
    return advantages


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """(B, T): mean 0 and variance 1 over all that the mask leaves; 0 elsewhere."""
    count = mask.sum().clamp(min=1)
    centred = (values - values.where(mask, 0).sum() / count).where(mask, 0.0)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    return centred * (variance + 1e-8).rsqrt()

"""KL divergence from the reference, estimated from the tokens that the policy has drawn (Schulman 2020).

    d = log π(token) - log π_ref(token)
    k1 = d                  unbiased, of high variance, may be negative
    k2 = d² / 2             biased, of low variance
    k3 = e^-d - 1 + d       unbiased, never negative: GRPO's

The sum over an answer estimates KL(π, π_ref) of whole answers to a prompt, in nats.
"""

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Estimator: TypeAlias = Literal["k1", "k2", "k3"]


def estimate_kl(log_probs: Tensor, reference: Tensor, estimator: Estimator = "k1") -> Tensor:
    """Of each token, from its log-probabilities under the policy and under the reference."""
    difference = log_probs - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return torch.exp(-difference) - 1 + difference


def best_of_n_kl(n: int) -> float:
    """log n - (n - 1) / n: an upper bound of the KL divergence of best-of-n from the policy that it draws from.

    (Stiennon et al. 2020; Beirami et al. 2024 show that it is a bound.)
    """
    return math.log(n) - (n - 1) / n

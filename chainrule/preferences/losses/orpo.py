"""ORPO: odds ratio preference optimisation (Hong et al. 2024, arXiv:2403.07691). It needs no reference.

    loss = -ℓ⁺ - β log σ(log odds(ℓ⁺) - log odds(ℓ⁻)),   ℓ = (1/n) log π(y),   odds(ℓ) = e^ℓ / (1 - e^ℓ)

The first term is fine-tuning on the chosen answer, a mean over its tokens. (TRL takes the mean over all tokens of a
batch, those of the prompts too; the second term is the same.)
"""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def orpo(
    chosen: Tensor, rejected: Tensor, beta: float, chosen_tokens: Tensor, rejected_tokens: Tensor
) -> Tensor:
    """(B,) of log p of the answers and the number of their tokens, each (B,)."""
    first, second = chosen / chosen_tokens.clamp(min=1), rejected / rejected_tokens.clamp(min=1)
    return -first - beta * logsigmoid(log_odds(first) - log_odds(second))


def log_odds(log_prob: Tensor) -> Tensor:
    """log p - log(1 - p); a probability that is 1 in float32 is taken as the one below it."""
    below_zero = log_prob.clamp(max=-torch.finfo(log_prob.dtype).eps)
    return log_prob - torch.log(-torch.expm1(below_zero))

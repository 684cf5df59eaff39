import math

import torch
from torch import Tensor


def causal_mask(T: int) -> Tensor:
    return torch.full((T, T), -math.inf).triu(1)


def attention(Q: Tensor, K: Tensor, V: Tensor, M: Tensor) -> tuple[Tensor, Tensor]:
    weights = (Q @ K.mT / math.sqrt(Q.shape[-1]) + M).softmax(-1)
    return weights @ V, weights


def multi_head_attention(
    X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, heads: int, M: Tensor
) -> Tensor:
    Q, K, V = ((X @ W).unflatten(-1, (heads, -1)).transpose(1, 2) for W in (W_Q, W_K, W_V))
    mixed, _ = attention(Q, K, V, M)
    return mixed.transpose(1, 2).flatten(2) @ W_O

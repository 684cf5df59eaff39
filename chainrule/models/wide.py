"""Sizes that suit the tensor cores: a layer of 650 or 1,500 units runs as one of 656 or 1,504, with the same result.

All weights to and from the units that are added are 0, so nobody reads them. They are added for the occasion, while
learning in half precision on a GPU, where 2 x 1,500 units learn half again as fast; the layer keeps its size.

Shapes: B rows, T tokens, D inputs, H hidden units, K directions, G gates.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule.models.cells import Weights

MULTIPLE = 8


def is_worth_it(x: Tensor, hidden: int) -> bool:
    half = torch.is_autocast_enabled(x.device.type) or x.dtype != torch.float32
    suits = x.shape[-1] % MULTIPLE == 0 and hidden % MULTIPLE == 0
    return x.is_cuda and half and not suits and torch.is_grad_enabled()


def widen(vectors: Tensor) -> Tensor:
    """Zeros behind the numbers of the last axis."""
    return pad(vectors, (0, -vectors.shape[-1] % MULTIPLE))


def widen_weights(weights: Weights) -> Weights:
    """The same for inputs and hidden units, gate by gate."""
    hidden = weights.W.shape[1]
    more = -hidden % MULTIPLE
    U, W = (pad(part.view(-1, hidden, part.shape[1]), (0, -part.shape[1] % MULTIPLE, 0, more)) for part in weights[:2])
    b_U, b_W = (widen(part.view(-1, hidden)) for part in weights[2:])
    return Weights(U.flatten(0, 1), W.flatten(0, 1), b_U.flatten(), b_W.flatten())


def narrow(vectors: Tensor, hidden: int, directions: int = 1) -> Tensor:
    """(…, K·H wide) -> (…, K·H)"""
    by_direction = vectors.view(*vectors.shape[:-1], directions, -1)
    return by_direction[..., :hidden].flatten(-2)

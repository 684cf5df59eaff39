"""Dropout (Srivastava et al. 2014): in training a number is 0 with probability p, and is else divided by 1 - p.

On a CPU torch draws a mask from 53 random bits for each number, which takes as long as a matrix product of a small
network. Here a number has 16, so p is rounded to a multiple of 1/65,536, and a mask takes a third of the time. Where
training uses kernels in C++ (layers.cpp), the mask is not even stored: it follows from a key of 64 random bits, and the
backward pass computes it again.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.kernels import ops

LEVELS = 1 << 16    # of a number's random bits
WITH_KERNEL = torch.float32, torch.bfloat16


def dropout(x: Tensor, p: float) -> Tensor:
    """Of numbers in training. Only a CPU draws slowly; torch.compile has its own kernel."""
    if p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, p)
    if ops.fuses(x, "dropout") and x.dtype in WITH_KERNEL:
        return ops.dropout(x, p, int(_random_bits(1)))
    return (x * _kept(x.shape, p)).mul_(1 / (1 - p))    # in two products: bfloat16 would round the factor


def _kept(shape: torch.Size, p: float) -> Tensor:
    """1 where a number is kept, else 0; bytes, since they are multiplied faster than booleans."""
    numbers = shape.numel()
    draws = _random_bits(-(-numbers // 4))    # 64 bits: four numbers
    levels = draws.view(torch.int16)[:numbers].view(shape)
    return (levels >= round(p * LEVELS) - LEVELS // 2).view(torch.uint8)


def _random_bits(count: int) -> Tensor:
    """(count,) numbers of 64 bits."""
    return torch.empty(count, dtype=torch.int64).random_(-(2**63), None)


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

"""Dropout (Srivastava et al. 2014): in training a number is 0 with probability p, and is else divided by 1 - p.

On a CPU torch draws a mask from 53 random bits for each number, which takes as long as a matrix product of a small
network. Here a number has 16, so p is rounded to a multiple of 1/65,536, and a mask takes a third of the time.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 1 << 16    # of a number's random bits


def dropout(x: Tensor, p: float) -> Tensor:
    """Of numbers in training. Only a CPU draws slowly; torch.compile has its own kernel."""
    if p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, p)
    return (x * _kept(x.shape, p)).mul_(1 / (1 - p))    # in two products: bfloat16 would round the factor


def _kept(shape: torch.Size, p: float) -> Tensor:
    """1 where a number is kept, else 0; bytes, since they are multiplied faster than booleans."""
    numbers = shape.numel()
    draws = torch.empty(-(-numbers // 4), dtype=torch.int64).random_(-(2**63), None)    # 64 bits: four numbers
    levels = draws.view(torch.int16)[:numbers].view(shape)
    return (levels >= round(p * LEVELS) - LEVELS // 2).view(torch.uint8)


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

"""Several linear maps of one vector, made by one product: the rows of each lie under those of the one before."""

from collections.abc import Sequence

from torch import nn


class Maps(nn.Linear):
    def __init__(self, width: int, parts: Sequence[int], bias: bool):
        super().__init__(width, sum(parts), bias)
        self.parts = list(parts)    # rows of each map

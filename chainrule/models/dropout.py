"""Ways to drop numbers while learning, so that a network cannot lean on any of them. Nothing is dropped in `eval`.

Shapes: B rows, T tokens, D width.
"""

from torch import Tensor, nn
from torch.nn.functional import dropout


class LockedDropout(nn.Module):
    """One mask for all the tokens of a row, drawn anew for every batch (Gal & Ghahramani 2016)."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        return x * dropout(x.new_ones(len(x), 1, x.shape[-1]), self.p)


def make_dropout(p: float, locked: bool) -> nn.Module:
    return LockedDropout(p) if locked else nn.Dropout(p)

"""Muon (Jordan et al. 2024): momentum whose direction is made orthogonal, for the matrices of hidden layers.

A matrix that holds several maps, such as queries, keys and values, is as many matrices to it. They go through
Newton–Schulz in stacks of one shape, so a deep model needs no more launches than a shallow one. Steps are scaled to the
length of AdamW's (Liu et al. 2025), so that one learning rate serves both.

Shapes: N matrices of one shape, A x B.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from chainrule.device import multiplies_bfloat16
from chainrule.models.maps import Maps
from chainrule.train.parallel import buckets
from chainrule.train.rules import Rule
from chainrule.train.shards import is_shared, local, share_of, whole

QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of aX + bX³ + cX⁵, which brings all singular values near 1 in ROUNDS."""

ROUNDS = 5


def newton_schulz(stack: Tensor) -> Tensor:
    """(N, A, B) -> the same with all singular values near 1; in bfloat16, which is enough, where that is quick."""
    if stack.shape[1] > stack.shape[2]:
        return newton_schulz(stack.mT).mT                  # the products are smaller on the short side
    a, b, c = QUINTIC
    x = stack.bfloat16() if stack.is_cuda or multiplies_bfloat16(stack.device) else stack.float()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(Rule):
    """As torch.optim.Muon with match_rms_adamw, in stacks."""

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.1,
        parts: Mapping[Tensor, list[int]] = {},    # rows of the maps that a matrix holds, where it holds several
    ):
        super().__init__(weights, lr)
        self.momentum, self.decay, self.parts = momentum, decay, parts

    def change(self, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
        velocities = self.recall(weights, "momentum_buffer")
        torch._foreach_lerp_(velocities, gradients, 1 - self.momentum)
        directions = torch._foreach_lerp(gradients, velocities, self.momentum)      # Nesterov's
        torch._foreach_mul_([local(weight) for weight in weights], 1 - self.lr * self.decay)
        matrices: list[Tensor] = [*weights]
        if is_shared(matrices[0]):
            self._add_to_shares(matrices, iter(directions))
        else:
            self._add(matrices, matrices, directions)

    def _add_to_shares(self, matrices: list[Tensor], directions: Iterator[Tensor]) -> None:
        """As `_add`: a few directions at a time are made whole, and each rank takes its shares of what they become."""
        for some in buckets(matrices):
            ways = [whole(next(directions), matrix) for matrix in some]
            changes = [torch.zeros_like(way) for way in ways]
            self._add(some, changes, ways)
            shares = [share_of(change, matrix) for change, matrix in zip(changes, some, strict=True)]
            torch._foreach_add_([local(matrix) for matrix in some], shares)

    def _add(self, matrices: list[Tensor], values: list[Tensor], directions: Iterable[Tensor]) -> None:
        """To the values of matrices, their directions made orthogonal."""
        maps, ways = self._maps(matrices, values), self._maps(matrices, directions)
        for places in _alike(maps):
            stack = torch.stack([ways[place] for place in places])
            length = -0.2 * math.sqrt(max(stack.shape[1:]))
            stack = (newton_schulz(stack).float() * (length * self.lr)).contiguous()
            torch._foreach_add_([maps[place] for place in places], list(stack.unbind()))

    def _maps(self, matrices: list[Tensor], values: Iterable[Tensor]) -> list[Tensor]:
        """Views of the maps in the values of matrices."""
        pairs = zip(matrices, values, strict=True)
        return [part for matrix, value in pairs for part in torch.split(value, self.parts.get(matrix, [len(value)]))]


def _alike(matrices: list[Tensor]) -> Iterable[list[int]]:
    """Places of matrices that have the same shape."""
    places: dict[torch.Size, list[int]] = {}
    for place, matrix in enumerate(matrices):
        places.setdefault(matrix.shape, []).append(place)
    return places.values()


def maps_of(model: nn.Module) -> dict[Tensor, list[int]]:
    """The rows of each map, for matrices that hold several: `Maps`, and the gates of torch's recurrent networks."""
    found: dict[Tensor, list[int]] = {}
    for module in model.modules():
        if isinstance(module, Maps):
            found[module.weight] = module.parts
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
            matrices = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() == 2]
            found |= {matrix: [module.hidden_size] * (len(matrix) // module.hidden_size) for matrix in matrices}
    return found

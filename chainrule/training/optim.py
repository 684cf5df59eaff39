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
from chainrule.layers.attention import PackedLinear
from chainrule.training.distributed import buckets
from chainrule.training.fsdp import is_shared, local, share_of, whole

# How weights change by their gradients: SGD with momentum, and AdamW (Loshchilov & Hutter 2019).
#
#     SGD     v ← βv + g + λw;   w ← w - ηv
#     AdamW   m ← β₁m + (1 - β₁)g;   s ← β₂s + (1 - β₂)g²;   w ← (1 - ηλ)w - η m̂ / (√ŝ + ε)      ^: without the bias
# to 0
#
# They are those of torch.optim, which the tests hold beside them, on its fused kernels. Its classes load torch's
# compiler
# when first used, which takes longer than a short training; and here what a rule remembers has a weight and a name.

EPSILON = 1e-8


class Rule:
    """Some weights, a rate that all of them have, and what is remembered of each."""

    def __init__(self, weights: Sequence[nn.Parameter], lr: float):
        self.weights, self.highest = list(weights), lr
        # On a GPU the rate is a tensor, which can change between the replays of a CUDA graph.
        self.lr: float | Tensor = torch.tensor(lr, device=weights[0].device) if weights[0].is_cuda else lr
        self.remembered: dict[nn.Parameter, dict[str, Tensor]] = {}

    def set_rate(self, factor: float) -> None:
        if isinstance(self.lr, Tensor):
            self.lr.fill_(factor * self.highest)
        else:
            self.lr = factor * self.highest

    @torch.no_grad()
    def step(self) -> None:
        weights = [weight for weight in self.weights if weight.grad is not None]
        if weights:
            self.change(weights, [local(weight.grad) for weight in weights if weight.grad is not None])

    def change(self, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """The weights by their gradients; of shared ones, this rank's shares by its shares."""
        raise NotImplementedError

    def recall(self, weights: list[nn.Parameter], name: str) -> list[Tensor]:
        """What is remembered of each weight under a name; at first, zeros in its shape."""
        for weight in weights:
            known = self.remembered.setdefault(weight, {})
            if name not in known:
                known[name] = torch.zeros_like(weight)
        return [local(self.remembered[weight][name]) for weight in weights]


class SGD(Rule):
    def __init__(self, weights: Sequence[nn.Parameter], lr: float, momentum: float, decay: float):
        super().__init__(weights, lr)
        self.momentum, self.decay = momentum, decay

    def change(self, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
        values = [local(weight) for weight in weights]
        directions = list(torch._foreach_add(gradients, values, alpha=self.decay)) if self.decay else gradients
        if self.momentum:
            velocities = self.recall(weights, "momentum_buffer")
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, directions)
            directions = velocities
        torch._foreach_sub_(values, torch._foreach_mul(directions, self.lr))


class AdamW(Rule):
    def __init__(self, weights: Sequence[nn.Parameter], lr: float, betas: Sequence[float], decay: float):
        super().__init__(weights, lr)
        self.betas, self.decay = betas, decay

    def change(self, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
        means, squares = self.recall(weights, "exp_avg"), self.recall(weights, "exp_avg_sq")
        steps = self._steps(weights)
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            [local(weight) for weight in weights], gradients, means, squares, [], steps,
            lr=self.lr, beta1=self.betas[0], beta2=self.betas[1], weight_decay=self.decay, eps=EPSILON,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def _steps(self, weights: list[nn.Parameter]) -> list[Tensor]:
        """How often each weight has been changed, where its gradient is, so that nobody waits for it."""
        for weight in weights:
            self.remembered[weight].setdefault("step", torch.zeros((), device=weight.device))
        return [self.remembered[weight]["step"] for weight in weights]


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
        if isinstance(module, PackedLinear):
            found[module.weight] = module.parts
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
            matrices = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() == 2]
            found |= {matrix: [module.hidden_size] * (len(matrix) // module.hidden_size) for matrix in matrices}
    return found

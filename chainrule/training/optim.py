"""Optimizers: SGD with momentum, AdamW (Loshchilov & Hutter 2019) and Muon (Jordan et al. 2024), with weight decay.

    SGD     v ← βv + g + λw;   w ← w - ηv
    AdamW   m ← β₁m + (1 - β₁)g;   s ← β₂s + (1 - β₂)g²;   w ← (1 - ηλ)w - η m̂ / (√ŝ + ε)      ^: bias-corrected
    Muon    v ← βv + (1 - β)g;   w ← (1 - ηλ)w - η · orthogonalised((1 - β)g + βv), for the matrices of hidden layers

They equal those of torch.optim, and the tests compare them. torch.optim's classes import torch's compiler when first
used, which takes longer than a short training; and here the state of a parameter has a name, so it can be saved.

Shapes: N matrices of one shape, A x B.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from chainrule.device import multiplies_bfloat16
from chainrule.layers.attention import PackedLinear
from chainrule.layers.experts import ExpertLinear
from chainrule.training.distributed import make_buckets
from chainrule.training.fsdp import full_tensor, is_sharded, local, shard_of

EPSILON = 1e-8


class Optimizer:
    """Some parameters, their learning rate, and the state of each (momentum and the like)."""

    def __init__(self, weights: Sequence[nn.Parameter], lr: float):
        self.weights, self.max_lr = list(weights), lr
        # On a GPU the rate is a tensor, which can change between the replays of a CUDA graph.
        self.lr: float | Tensor = torch.tensor(lr, device=weights[0].device) if weights[0].is_cuda else lr
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}

    def set_lr(self, factor: float) -> None:
        if isinstance(self.lr, Tensor):
            self.lr.fill_(factor * self.max_lr)
        else:
            self.lr = factor * self.max_lr

    @torch.no_grad()
    def step(self) -> None:
        weights = [weight for weight in self.weights if weight.grad is not None]
        if weights:
            self.update(weights, [local(weight.grad) for weight in weights if weight.grad is not None])

    def update(self, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
        """The weights by their gradients; if they are sharded, this rank's shards."""
        raise NotImplementedError

    def state_of(self, weights: list[nn.Parameter], name: str) -> list[Tensor]:
        """The state of each weight under a name; at first, zeros in its shape."""
        for weight in weights:
            state = self.state.setdefault(weight, {})
            if name not in state:
                state[name] = torch.zeros_like(weight)
        return [local(self.state[weight][name]) for weight in weights]


class SGD(Optimizer):
    def __init__(self, weights: Sequence[nn.Parameter], lr: float, momentum: float, decay: float):
        super().__init__(weights, lr)
        self.momentum, self.decay = momentum, decay

    def update(self, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
        values = [local(weight) for weight in weights]
        directions = list(torch._foreach_add(gradients, values, alpha=self.decay)) if self.decay else gradients
        if self.momentum:
            velocities = self.state_of(weights, "momentum_buffer")
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, directions)
            directions = velocities
        torch._foreach_sub_(values, torch._foreach_mul(directions, self.lr))


class AdamW(Optimizer):
    def __init__(self, weights: Sequence[nn.Parameter], lr: float, betas: Sequence[float], decay: float):
        super().__init__(weights, lr)
        self.betas, self.decay = betas, decay

    def update(self, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
        means, squares = self.state_of(weights, "exp_avg"), self.state_of(weights, "exp_avg_sq")
        steps = self._steps(weights)
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            [local(weight) for weight in weights], gradients, means, squares, [], steps,
            lr=self.lr, beta1=self.betas[0], beta2=self.betas[1], weight_decay=self.decay, eps=EPSILON,
            amsgrad=False, maximize=False,
        )  # fmt: skip
        for weight in weights:
            increment_version(weight)    # the fused step does not, and merged LoRA matrices are kept by version

    def _steps(self, weights: list[nn.Parameter]) -> list[Tensor]:
        """How often each weight was updated, on the device of its gradient, so that no GPU is waited for."""
        for weight in weights:
            self.state[weight].setdefault("step", torch.zeros((), device=weight.device))
        return [self.state[weight]["step"] for weight in weights]


QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of aX + bX³ + cX⁵, which brings all singular values near 1 in ROUNDS."""

ROUNDS = 5

WIDE, RUNS = 2, (3, 2)
"""From this B/A on it is faster to multiply X Xᵀ than X, in runs of so many rounds: one run of five would round small
singular values away."""


def newton_schulz(stack: Tensor) -> Tensor:
    """Newton–Schulz: (N, A, B) -> the same with all singular values near 1; in bfloat16 where that is fast."""
    if stack.shape[1] > stack.shape[2]:
        return newton_schulz(stack.mT).mT                  # the products are smaller on the short side
    a, b, c = QUINTIC
    x: Tensor = stack.bfloat16() if stack.is_cuda or multiplies_bfloat16(stack.device) else stack.float()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if x.dtype == torch.float32 and x.shape[2] >= WIDE * x.shape[1]:
        for rounds in RUNS:
            x = _product_of_rounds(x @ x.mT, rounds) @ x
        return x
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _product_of_rounds(gram: Tensor, rounds: int) -> Tensor:
    """(N, A, A) G = X Xᵀ -> the product of the P = aI + bG + cG² by which rounds multiply X. After one, G is P G P."""
    a, b, c = QUINTIC
    factors: list[Tensor] = []
    for _ in range(rounds):
        gram = factors[-1] @ gram @ factors[-1] if factors else gram
        factors.append(torch.baddbmm(gram, gram, gram, beta=b, alpha=c))
        factors[-1].diagonal(dim1=1, dim2=2).add_(a)
    return reduce(lambda product, factor: factor @ product, factors)


class Muon(Optimizer):
    """As torch.optim.Muon with match_rms_adamw (Liu et al. 2025): steps as long as AdamW's, so one lr serves both.

    Matrices of one shape go through Newton–Schulz as a stack, so that a deep model needs few launches.
    A weight that packs several matrices, such as queries, keys and values, is as many matrices here, and so is the
    weight of several experts.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        decay: float = 0.1,
        parts: Mapping[Tensor, list[int]] = {},    # rows of each matrix in a weight that packs several
    ):
        super().__init__(weights, lr)
        self.momentum, self.decay, self.parts = momentum, decay, parts

    def update(self, weights: list[nn.Parameter], gradients: list[Tensor]) -> None:
        velocities = self.state_of(weights, "momentum_buffer")
        torch._foreach_lerp_(velocities, gradients, 1 - self.momentum)
        directions = torch._foreach_lerp(gradients, velocities, self.momentum)      # Nesterov momentum
        torch._foreach_mul_([local(weight) for weight in weights], 1 - self.lr * self.decay)
        matrices: list[Tensor] = [*weights]
        if is_sharded(matrices[0]):
            self._add_to_shards(matrices, iter(directions))
        else:
            self._add(matrices, matrices, directions)

    def _add_to_shards(self, matrices: list[Tensor], directions: Iterator[Tensor]) -> None:
        """As `_add`: a bucket of directions at a time is gathered, and each rank takes its shards of the update."""
        for some in make_buckets(matrices):
            full = [full_tensor(next(directions), matrix) for matrix in some]
            updates = [torch.zeros_like(direction) for direction in full]
            self._add(some, updates, full)
            shards = [shard_of(update, matrix) for update, matrix in zip(updates, some, strict=True)]
            torch._foreach_add_([local(matrix) for matrix in some], shards)

    def _add(self, matrices: list[Tensor], values: list[Tensor], directions: Iterable[Tensor]) -> None:
        """Adds to the values of matrices their orthogonalised directions."""
        targets, unpacked = self._unpack(matrices, values), self._unpack(matrices, directions)
        for places in _by_shape(targets):
            stack = torch.stack([unpacked[place] for place in places])
            scale = -0.2 * math.sqrt(max(stack.shape[1:]))
            stack = (newton_schulz(stack).float() * (scale * self.lr)).contiguous()
            torch._foreach_add_([targets[place] for place in places], list(stack.unbind()))

    def _unpack(self, matrices: list[Tensor], values: Iterable[Tensor]) -> list[Tensor]:
        """Views of the single matrices in the values of packed ones, and in those of several experts."""
        pairs = zip(matrices, values, strict=True)
        single = ((matrix, one) for matrix, value in pairs for one in (value if value.dim() == 3 else [value]))
        return [part for matrix, one in single for part in torch.split(one, self.parts.get(matrix, [len(one)]))]


def _by_shape(matrices: list[Tensor]) -> Iterable[list[int]]:
    """Places of matrices that have the same shape."""
    places: dict[torch.Size, list[int]] = {}
    for place, matrix in enumerate(matrices):
        places.setdefault(matrix.shape, []).append(place)
    return places.values()


def packed_rows(model: nn.Module) -> dict[Tensor, list[int]]:
    """The rows of each matrix in weights that pack several: `PackedLinear`, and the gates of recurrent networks."""
    found: dict[Tensor, list[int]] = {}
    for module in model.modules():
        if isinstance(module, PackedLinear | ExpertLinear):
            found[module.weight] = module.parts
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
            matrices = [parameter for parameter in module.parameters(recurse=False) if parameter.dim() == 2]
            found |= {matrix: [module.hidden_size] * (len(matrix) // module.hidden_size) for matrix in matrices}
    return found

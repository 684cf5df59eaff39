"""How weights change by their gradients: SGD with momentum, and AdamW (Loshchilov & Hutter 2019).

    SGD     v ← βv + g + λw;   w ← w - ηv
    AdamW   m ← β₁m + (1 - β₁)g;   s ← β₂s + (1 - β₂)g²;   w ← (1 - ηλ)w - η m̂ / (√ŝ + ε)      ^: without the bias to 0

They are those of torch.optim, which the tests hold beside them, on its fused kernels. Its classes load torch's compiler
when first used, which takes longer than a short training; and here what a rule remembers has a weight and a name.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chainrule.train.shards import local

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

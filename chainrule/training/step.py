"""One step of gradient descent: micro-batches, their exact sum, one division, one change of the weights.

    g = Σ over micro-batches and ranks of ∇ nats, divided once by the targets; shortened to `clip`; then the optimizer

Nothing here waits for a GPU: sums, norms and what went wrong stay there until someone asks. If memory runs out the
micro-batch is halved and the step begun again, which changes no sum.

Shapes: P parameters.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chainrule import kernels
from chainrule.device import Precision
from chainrule.errors import UserError, out_of_memory
from chainrule.model import Batch, State, join, map_state
from chainrule.progress import say
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.fsdp import is_shared, local
from chainrule.training.param_groups import Optimizers


@dataclass(frozen=True)
class Reading:
    """What a step has to say, once it is asked."""

    nats: float                 # over all steps
    targets: int                # likewise
    norm: float                 # of the last gradient, before it was shortened
    trouble: tuple[int, str] | None    # the first step whose gradient was not finite, and the name of the gradient


class Step:
    def __init__(
        self, model: Any, optimizers: Optimizers, precision: Precision, clip: float, rows: int, carries: bool,
        ranks: Ranks = ALONE,
    ):
        self.model, self.optimizers, self.precision, self.carries = model, optimizers, precision, carries
        self.ranks = ranks
        self.clip, self.rows = clip or math.inf, rows      # rows: in one micro-batch
        self.loss = model.loss
        self.fused = False                                # are kernels to do parts of it together?
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [parameter for _, parameter in named]
        self.sharded = is_shared(self.parameters[0])
        device = self.parameters[0].device
        self.totals = torch.zeros(2, dtype=torch.float64, device=device)          # nats and targets, over all steps
        self.norms = torch.zeros(len(named), dtype=torch.float64, device=device)  # (P,) of the last mean gradient
        self.good = torch.zeros((), dtype=torch.int64, device=device)             # steps before the first trouble
        self.trouble = torch.zeros(len(named) + 1, dtype=torch.bool, device=device)
        self.nothing = torch.zeros((), device=device)

    def start_from(self, step: int, totals: Tensor) -> None:
        """As it was after so many good steps."""
        self.totals.copy_(totals)
        self.good.fill_(step)
        self.trouble.zero_()

    def take(self, batch: Batch, state: State) -> State:
        """Changes the weights by what a batch says; the state before its rows becomes the state behind them."""
        while True:
            try:
                totals, state = self.accumulate(batch, state)
                break
            except RuntimeError as error:                   # torch's OutOfMemoryError is one
                if not out_of_memory(error):
                    raise
            self._halve(batch.tokens)
        self.change(totals)
        return state

    def accumulate(self, batch: Batch, state: State) -> tuple[Tensor, State]:
        """Leaves the gradients of the sum of nats in the parameters; the nats and targets, and the state behind."""
        self.optimizers.forget_gradients()
        totals, states = torch.zeros_like(self.totals), []
        for first in range(0, len(batch.tokens), self.rows):
            here = slice(first, first + self.rows)
            with self.precision(), kernels.in_training(self.fused):
                nats, count, after = self.loss(batch.rows(here), _rows_of(state, here))
            nats.backward()
            totals += torch.stack([nats.detach().double(), count.double()])
            if self.carries:
                states.append(map_state(after, Tensor.detach))
        return totals, join(states) if len(states) > 1 else states[0] if states else None

    def gradient_norm(self, batch: Batch, state: State) -> float:
        """Of the sum of nats of a batch. The gradient is forgotten, and chance as it was."""
        with torch.random.fork_rng([self.totals.device] if self.totals.is_cuda else []):
            self.accumulate(batch, state)
        gradients = [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        self.optimizers.forget_gradients()
        return float(torch.stack(torch._foreach_norm(gradients)).norm()) if gradients else 0.0

    def change(self, totals: Tensor) -> None:
        gradients = [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        self.ranks.add([totals] if self.sharded else [totals, *gradients])    # those of shards were added on their way
        every = [self.nothing if parameter.grad is None else local(parameter.grad) for parameter in self.parameters]
        targets = totals[1].clamp(min=1)                   # of a step without any the gradient is nothing
        self.norms.copy_(self._lengths(every) / targets)
        shorter = (self.clip / (self.norms.norm() + 1e-6)).clamp(max=1)
        torch._foreach_mul_(gradients, (shorter / targets).float())
        self.optimizers.step()
        self._note(totals)

    def _lengths(self, gradients: list[Tensor]) -> Tensor:
        lengths = torch.stack(torch._foreach_norm(gradients)).double()
        if self.sharded:
            lengths.square_()
            self.ranks.add([lengths])
            lengths.sqrt_()
        return lengths

    def _note(self, totals: Tensor) -> None:
        self.totals += totals
        broken = torch.cat([self.norms, totals[:1]]).isfinite().logical_not()
        self.trouble.copy_(torch.where(self.trouble.any(), self.trouble, broken))
        self.good += self.trouble.any().logical_not()

    def read(self) -> Reading:
        """Waits for the GPU."""
        nats, targets = self.totals.tolist()
        trouble = None
        if self.trouble.any():
            broken = self.trouble.tolist()
            # backwards, as gradients come: the first that broke is the last of the model
            name = next((name for name, bad in zip(self.names[::-1], broken[-2::-1]) if bad), "the loss")
            trouble = int(self.good) + 1, name
        return Reading(nats, round(targets) if math.isfinite(targets) else 0, float(self.norms.norm()), trouble)

    def _halve(self, tokens: Tensor) -> None:
        self.optimizers.forget_gradients()
        if self.sharded:
            raise UserError(
                f"out of memory with {self.rows} rows at a time, which shards cannot change halfway. "
                f"Set train.micro_batch={max(1, self.rows // 2)}, or start more ranks."
            )
        if self.rows == 1:
            raise UserError(
                f"out of memory with a single row of {tokens.shape[1]} tokens. "
                "A smaller model or a smaller train.length would fit."
            )
        self.rows = (min(self.rows, len(tokens)) + 1) // 2
        if tokens.is_cuda:
            torch.cuda.empty_cache()
        say(f"out of memory: from here on {self.rows} rows at a time, with the same sums.")


def _rows_of(state: State, here: slice) -> State:
    return None if state is None else map_state(state, lambda tensor: tensor[here])

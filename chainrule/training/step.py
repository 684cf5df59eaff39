"""One training step: gradient accumulation over micro-batches, all-reduce, gradient clipping, and the optimizer.

    g = Σ over micro-batches and ranks of ∇ nats, divided once by the number of targets; clipped; then the optimizer
    R-Drop: nats = ½ [-log p(y) - log q(y) + α · ½ (KL(p‖q) + KL(q‖p))],  p and q: two passes, each with its own dropout

The sum is exact: how a batch is cut into micro-batches changes no result. No GPU is waited for here: sums, norms and
the flags of gradients that are not finite stay there until `report` reads them. If memory runs out, the micro-batch is
halved and the step is begun again.

Shapes: P parameters; B rows, T tokens, V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from chainrule import kernels
from chainrule.device import Precision
from chainrule.errors import UserError, out_of_memory
from chainrule.kernels import float8_layers
from chainrule.layers.experts import Balance
from chainrule.model import IGNORE, Batch, Model, State, join, map_state
from chainrule.preferences.objective import Objective
from chainrule.progress import say
from chainrule.training.distributed import ALONE, Ranks
from chainrule.training.fsdp import is_sharded, local
from chainrule.training.param_groups import Optimizers

Loss: TypeAlias = Callable[[Batch, State], tuple[Tensor, Tensor, State]]
"""As `Model.loss`: the summed nats of a batch, the number of its targets, and the state after it."""


@dataclass(frozen=True)
class StepReport:
    """The sums of all steps so far, read from the device."""

    nats: float
    targets: int
    norm: float                           # of the last gradient, before clipping
    not_finite: tuple[int, str] | None    # the first step whose gradient was not finite, and the parameter's name
    experts: list[list[float]]            # `Balance.totals` of a mixture of experts; empty without one
    measured: list[list[float]]           # sums and counts of what an objective measures (preferences/objective.py)


class Step:
    def __init__(
        self, model: Model, optimizers: Optimizers, precision: Precision, clip: float, micro_batch: int, carries: bool,
        ranks: Ranks = ALONE, r_drop: float = 0.0,
    ):
        self.model, self.optimizers, self.precision, self.ranks = model, optimizers, precision, ranks
        self.carries = carries                             # whether the state goes on to the next step (streams)
        self.clip, self.micro_batch = clip or math.inf, micro_batch    # rows in a micro-batch
        self.eager_loss: Loss = partial(r_drop_loss, model, r_drop) if r_drop else model.loss
        self.loss: Loss = self.eager_loss                  # or compiled (compile/runner.py)
        self.fused = False                                 # whether fused kernels are used
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self.names, self.parameters = [name for name, _ in named], [parameter for _, parameter in named]
        self.sharded = is_sharded(self.parameters[0])
        device = self.parameters[0].device
        self.totals = torch.zeros(2, dtype=torch.float64, device=device)          # nats and targets, over all steps
        self.norms = torch.zeros(len(named), dtype=torch.float64, device=device)  # (P,) of the last mean gradient
        self.good = torch.zeros((), dtype=torch.int64, device=device)             # steps before the first bad one
        self.not_finite = torch.zeros(len(named) + 1, dtype=torch.bool, device=device)    # (P + 1,) and of the loss
        self.zero = torch.zeros((), device=device)
        self.balance = Balance(model, device)              # its losses are part of the gradient, not of the nats
        self.objective = model if isinstance(model, Objective) else None
        self.float8 = self._float8_casts() if precision.float8 else None
        self.measured = None if self.objective is None else torch.zeros_like(self.objective.sums)    # over all steps

    def _float8_casts(self) -> float8_layers.Casts:
        if self.sharded or self.objective is not None:
            what = "train.shard=true" if self.sharded else "preferences"
            raise UserError(f"train.precision=float8 does not work with {what}: use train.precision=bfloat16.")
        if self.balance.layers:
            say("train.precision=float8: the products of experts stay in bfloat16.")
        return float8_layers.Casts(self.model)

    def sums(self) -> dict[str, Tensor]:
        """The sums over all steps, for a checkpoint."""
        measured = {} if self.measured is None else {"measured": self.measured}
        return {"totals": self.totals, **self.balance.tensors(), **measured}

    def start_from(self, step: int, sums: dict[str, Tensor]) -> None:
        """As it was after so many good steps, with the `sums` of then."""
        self.totals.copy_(sums["totals"])
        self.balance.load(sums)
        if self.measured is not None:
            self.measured.copy_(sums["measured"])
        self.good.fill_(step)
        self.not_finite.zero_()

    def take(self, batch: Batch, state: State) -> State:
        """Updates the weights by a batch; the state before its rows becomes the state after them."""
        while True:
            try:
                totals, state = self.accumulate(batch, state)
                break
            except RuntimeError as error:                   # torch's OutOfMemoryError is one
                if not out_of_memory(error):
                    raise
            self._halve(batch.tokens)
        self.update(totals)
        return state

    def accumulate(self, batch: Batch, state: State) -> tuple[Tensor, State]:
        """Leaves the gradient of the summed nats in the parameters. Returns nats and targets, and the state after."""
        self.optimizers.zero_grad()
        self.balance.begin()
        if self.float8 is not None:
            self.float8.refresh()
        totals, states = torch.zeros_like(self.totals), []
        cuts = [slice(first, first + self.micro_batch) for first in range(0, len(batch.tokens), self.micro_batch)]
        if self.objective is not None:
            with self.precision(), kernels.in_training(self.fused):
                self.objective.begin_step((batch.rows(here) for here in cuts), self.ranks.all_reduce)
        for here in cuts:
            part = batch.rows(here)
            eight = float8_layers.in_training(self.float8 is not None)
            with self.precision(), kernels.in_training(self.fused), eight, self.balance.measure(part):
                nats, count, after = self.loss(part, _rows_of(state, here))
            nats.backward()  # type: ignore[no-untyped-call]
            totals += torch.stack([nats.detach().double(), count.double()])
            if self.carries:
                states.append(map_state(after, Tensor.detach))    # truncated BPTT: the gradient ends here
        return totals, join(states) if len(states) > 1 else states[0] if states else None

    def gradient_norm(self, batch: Batch, state: State) -> float:
        """Of the summed nats of a batch. The gradient is dropped, and the random generator restored."""
        with torch.random.fork_rng([self.totals.device] if self.totals.is_cuda else []):
            self.accumulate(batch, state)
        gradients = [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        self.optimizers.zero_grad()
        return float(torch.stack(torch._foreach_norm(gradients)).norm()) if gradients else 0.0

    def update(self, totals: Tensor) -> None:
        """The mean gradient over all ranks, clipped to a global norm of `clip`; then the optimizer."""
        gradients = [local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        sums = [totals, *self.balance.sums, *([] if self.objective is None else [self.objective.sums])]
        self.ranks.all_reduce(sums if self.sharded else [*sums, *gradients])    # FSDP has reduced its gradients
        every = [self.zero if parameter.grad is None else local(parameter.grad) for parameter in self.parameters]
        targets = totals[1].clamp(min=1)                   # in a step without targets the gradient is zero
        self.norms.copy_(self._norms(every) / targets)
        factor = (self.clip / (self.norms.norm() + 1e-6)).clamp(max=1)
        torch._foreach_mul_(gradients, (factor / targets).float())
        self.optimizers.step()
        self.balance.update(totals[1])
        self._note(totals)

    def _norms(self, gradients: list[Tensor]) -> Tensor:
        norms = torch.stack(torch._foreach_norm(gradients)).double()
        if self.sharded:
            norms.square_()
            self.ranks.all_reduce([norms])
            norms.sqrt_()
        return norms

    def _note(self, totals: Tensor) -> None:
        self.totals += totals
        if self.objective is not None and self.measured is not None:
            self.measured += self.objective.sums
        bad = torch.cat([self.norms, totals[:1]]).isfinite().logical_not()
        self.not_finite.copy_(torch.where(self.not_finite.any(), self.not_finite, bad))
        self.good += self.not_finite.any().logical_not()

    def report(self) -> StepReport:
        """Waits for the GPU."""
        nats, targets = self.totals.tolist()
        not_finite = None
        if self.not_finite.any():
            bad = self.not_finite.tolist()
            # in the order of backpropagation: the first that is not finite is the last of the model
            name = next((name for name, is_bad in zip(self.names[::-1], bad[-2::-1]) if is_bad), "the loss")
            not_finite = int(self.good) + 1, name
        targets = round(targets) if math.isfinite(targets) else 0
        measured = [] if self.measured is None else self.measured.tolist()
        return StepReport(nats, targets, float(self.norms.norm()), not_finite, self.balance.totals.tolist(), measured)

    def _halve(self, tokens: Tensor) -> None:
        self.optimizers.zero_grad()
        if self.sharded:
            raise UserError(
                f"out of memory with a micro-batch of {self.micro_batch} rows, which cannot change halfway with "
                f"train.shard=true. Set train.micro_batch={max(1, self.micro_batch // 2)}, or start more ranks."
            )
        if self.micro_batch == 1:
            raise UserError(
                f"out of memory with a single row of {tokens.shape[1]} tokens. "
                "A smaller model or a smaller train.length would fit."
            )
        self.micro_batch = (min(self.micro_batch, len(tokens)) + 1) // 2
        if tokens.is_cuda:
            torch.cuda.empty_cache()
        say(f"out of memory: from here on a micro-batch has {self.micro_batch} rows, with the same sums.")


def _rows_of(state: State, here: slice) -> State:
    return None if state is None else map_state(state, lambda tensor: tensor[here])


def r_drop_loss(model: Model, weight: float, batch: Batch, state: State = None) -> tuple[Tensor, Tensor, State]:
    """Regularised dropout (Liang et al. 2021): the rows are read twice, and the predictions should agree.

    Both passes are one batch of 2B rows, whose dropout masks differ. As with label smoothing, the value is the
    cross-entropy alone, and the gradient that of the whole objective.
    """
    mask = batch.loss_mask
    log_probs = model(batch.map(lambda tensor: torch.cat([tensor, tensor]))).float().log_softmax(-1)    # (2B, …, V)
    targets = batch.targets.where(mask, IGNORE).flatten().repeat(2)
    nats = functional.nll_loss(log_probs.flatten(0, -2), targets, ignore_index=IGNORE, reduction="sum") / 2
    p, q = log_probs.chunk(2)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2                # (B, …): ½ (KL(p‖q) + KL(q‖p))
    objective = nats + weight / 2 * (divergence * mask).sum()
    if model.label_smoothing:
        spread = -((p.mean(-1) + q.mean(-1)) * mask).sum() / 2              # cross-entropy of a uniform target
        objective = objective + model.label_smoothing * (spread - nats)
    return nats.detach() + (objective - objective.detach()), mask.sum(), None

"""Mixture of experts: several feed-forward layers, of which a router chooses a few for each token.

    p = softmax(W_r x);   G(x) = the k largest p, divided by their sum where asked;   y = Σ G(x)_i E_i(x)

(Shazeer et al. 2017; Mixtral divides, OLMoE does not.) No token is dropped, so a row's result does not depend on other
rows. The rows are sorted by expert, and a grouped matrix product multiplies each group by its own matrix: the sizes of
the groups stay on the GPU. Two losses keep the router in order (Fedus et al. 2022; Zoph et al. 2022):

    load balancing   E Σ f_i P_i     f_i: the expert's tokens per token, P_i: its mean probability; balanced it is k
    router z-loss    mean (log Σ exp logits)²

Shapes: N tokens, k active experts, E experts, D width, H hidden units of an expert, L layers with experts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import linear

from chainrule.device import working_dtype
from chainrule.kernels import ops
from chainrule.layers.transformer_settings import TransformerSettings
from chainrule.model import Batch, Tap

FEW = 4                   # active experts up to which repeated maxima are faster on a GPU than a sort
ALIGNED = 8               # bfloat16 numbers: the columns of a grouped matrix product are multiples of it
GROUPED_GPUS = (9, 10)    # compute capabilities whose grouped product does not wait for the sizes of the groups


class ExpertLinear(nn.Module):
    """A linear map for each expert: their matrices lie one behind the other."""

    def __init__(self, experts: int, inputs: int, parts: Sequence[int]):
        super().__init__()
        self.in_features, self.parts = inputs, list(parts)    # parts: outputs of each map that is packed in a matrix
        self.weight = nn.Parameter(torch.empty(experts, sum(parts), inputs))


@dataclass(frozen=True)
class Routing:
    logits: Tensor     # (N, E) in float32
    p: Tensor          # (N, E) their softmax
    chosen: Tensor     # (N, k) the experts of each token
    weights: Tensor    # (N, k) G(x) of these


class Experts(nn.Module):
    """A feed-forward layer of experts. The shared one, if there is one, serves every token."""

    def __init__(
        self, settings: TransformerSettings, activation: Callable[[Tensor], Tensor], shared: nn.Module | None = None
    ):
        super().__init__()
        assert settings.active is not None
        experts, gated = settings.experts, settings.gated
        self.experts, self.active, self.settings = experts, settings.active, settings
        self.router = nn.Linear(settings.width, experts, bias=False)
        self.up = ExpertLinear(experts, settings.width, [settings.hidden] * (2 if gated else 1))
        self.out = ExpertLinear(experts, settings.hidden, [settings.width])
        self.activation, self.shared = activation, shared
        self.shares = Tap()                                   # (B, T, E): the probability of each expert
        self.meter: RouterMeter | None = None                 # set while a trainer measures a micro-batch

    def forward(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """(B, T, D) or (N, D) -> the same; `token_mask` (B, T): False at padding, which no loss counts."""
        flat = x.flatten(0, -2)
        routing = self.route(flat)
        self.shares(routing.p.view(*x.shape[:-1], -1))
        y = self._mix(flat, routing).view(x.shape)
        if self.meter is not None and self.training and torch.is_grad_enabled():
            y = _AddLoss.apply(y, self.meter.loss(routing, token_mask))  # type: ignore[no-untyped-call]
        return y if self.shared is None else y + self.shared(x)

    def route(self, x: Tensor) -> Routing:
        """In float32 at least, since a rounded logit can choose another expert."""
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            logits = linear(x.to(exact), self.router.weight.to(exact))
            p = logits.softmax(-1)
            chosen = _largest(p.detach(), self.active)
            weights = p.gather(-1, chosen)
            if self.settings.renormalise:
                weights = weights / weights.sum(-1, keepdim=True)
        return Routing(logits, p, chosen, weights)

    def _mix(self, x: Tensor, routing: Routing) -> Tensor:
        """(N, D) -> (N, D): Σ G(x)_i E_i(x)"""
        dtype = working_dtype(x)
        grouped = self._can_group(x, dtype)
        if not grouped and _shapes_are_fixed(x):
            return self._mix_of_all(x, routing)
        groups = Groups.sort(routing.chosen, self.experts)
        multiply = _grouped_mm if grouped else _one_by_one
        rows = _gather(x.to(dtype), groups.order // self.active, groups.inverse, self.active)           # (N k, D)
        hidden = self._activate(multiply(rows, self.up.weight.to(dtype), groups.ends))                  # (N k, H)
        rows = multiply(hidden, self.out.weight.to(dtype), groups.ends)                                 # (N k, D)
        rows = _gather(rows, groups.inverse, groups.order).view(-1, self.active, x.shape[1])            # (N, k, D)
        return (rows * routing.weights.to(dtype)[..., None]).sum(1)

    def _mix_of_all(self, x: Tensor, routing: Routing) -> Tensor:
        """Every expert for every token. It costs E/k as much, but no shape depends on the router."""
        hidden = self._activate(x @ self.up.weight.mT)                                                  # (E, N, H)
        every = hidden @ self.out.weight.mT                                                             # (E, N, D)
        weights = torch.zeros_like(routing.p).scatter(1, routing.chosen, routing.weights)               # (N, E)
        return (every * weights.T[..., None].to(every.dtype)).sum(0)

    def _activate(self, product: Tensor) -> Tensor:
        if ops.fuses(product, self.settings.activation):
            return ops.bias_act(product, None, self.settings.activation)
        return self.activation(product)

    def _can_group(self, x: Tensor, dtype: torch.dtype) -> bool:
        aligned = all(size % ALIGNED == 0 for size in (*self.up.weight.shape[1:], *self.out.weight.shape[1:]))
        return x.is_cuda and dtype == torch.bfloat16 and aligned and _gpu_groups(x.get_device())


def _largest(p: Tensor, count: int) -> Tensor:
    """(N, E) -> (N, count): the places of the largest, in order."""
    if not p.is_cuda or count > FEW:
        return p.topk(count, -1).indices
    places = [p.argmax(-1, keepdim=True)]
    while len(places) < count:
        p = p.scatter(-1, places[-1], -1.0)
        places.append(p.argmax(-1, keepdim=True))
    return torch.cat(places, -1)


# Dispatch: rows sorted by expert, and back. Both directions and both gradients are gathers, so nothing is added in an
# order that could change, and no GPU is waited for.


@dataclass(frozen=True)
class Groups:
    order: Tensor      # (N k,) places of the chosen (token, expert) pairs, sorted by expert
    inverse: Tensor    # (N k,) where each pair went
    ends: Tensor       # (E,) int32: where the rows of each expert end

    @classmethod
    def sort(cls, chosen: Tensor, experts: int) -> "Groups":
        """(N, k) -> the groups of its pairs."""
        small = torch.uint8 if experts <= 256 else torch.int32             # few bits are sorted fast
        sorted_ids, order = chosen.flatten().to(small).sort(stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        every = torch.arange(experts, device=order.device, dtype=small)
        ends = torch.searchsorted(sorted_ids, every, right=True, out_int32=True)
        return cls(order, inverse, ends)


class _Gather(torch.autograd.Function):
    """(R, D) -> x[places]. `back`: where each row of x has its copies, `copies` of them next to each other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, back: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(back)
        ctx.copies = copies
        return x[places]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (back,), (grad_rows,) = ctx.saved_tensors, grads
        grad_x = grad_rows[back]
        return grad_x if ctx.copies == 1 else grad_x.view(-1, ctx.copies, grad_x.shape[1]).sum(1), None, None, None


def _gather(x: Tensor, places: Tensor, back: Tensor, copies: int = 1) -> Tensor:
    rows: Tensor = _Gather.apply(x, places, back, copies)  # type: ignore[no-untyped-call]
    return rows


def _grouped_mm(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """(R, I), (E, O, I) -> (R, O): each group of rows by its own matrix."""
    product: Callable[..., Tensor] = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    return product(rows, weight.mT, offs=ends)


def _one_by_one(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """As `_grouped_mm`, in a loop over the experts."""
    sizes = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    groups = zip(torch.split(rows, sizes), weight, strict=True)
    return torch.cat([linear(group, matrix) for group, matrix in groups])


def _shapes_are_fixed(x: Tensor) -> bool:
    """Whether no shape may depend on a value: in a CUDA graph, and under torch.compile."""
    return torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


@cache
def _gpu_groups(device: int) -> bool:
    found = hasattr(functional, "grouped_mm") or hasattr(torch, "_grouped_mm")
    return found and torch.cuda.get_device_capability(device)[0] in GROUPED_GPUS


# The losses of the router. They are part of the gradient and of the log, never of the reported cross-entropy.


class _AddLoss(torch.autograd.Function):
    """Returns y. In the backward pass the gradient of `loss` is added, as if it had been added to the summed nats."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss.dtype, loss.device
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        dtype, device = ctx.like
        return *grads, torch.ones((), dtype=dtype, device=device)


@dataclass
class RouterMeter:
    """What the router of one layer did in this step, and what it needs to know of the one before."""

    sums: Tensor       # (2E + 2,) chosen pairs and probability of each expert, squared log-sum-exp, tokens
    share: Tensor      # (E,) f of the step before
    scale: Tensor      # () targets per token in the step before, over L
    balance: float     # coefficient of the load-balancing loss
    z: float           # coefficient of the router z-loss
    rows: Tensor       # (B,) rows of the micro-batch that have targets; others count no more than padding

    def loss(self, routing: Routing, token_mask: Tensor | None) -> Tensor:
        """Both losses, summed over tokens; the sums of this step are added up on the way."""
        experts = routing.p.shape[1]
        z = routing.logits.logsumexp(-1).square()                                                       # (N,)
        counts = (routing.chosen[..., None] == torch.arange(experts, device=z.device)).sum(1)           # (N, E)
        every = torch.cat([counts, routing.p, z[:, None], torch.ones_like(z[:, None])], -1)
        counted = self.rows[:, None]                                                                    # (B, 1)
        if token_mask is not None:               # a batch of pairs is read as 2B rows: all first ones, all second ones
            counted = counted.repeat(len(token_mask) // len(counted), 1) & token_mask                   # (B, T)
        total = (every.view(len(counted), -1, every.shape[1]) * counted[..., None]).sum((0, 1))
        self.sums.add_(total.detach())
        balance, squared = experts * total[experts : 2 * experts] @ self.share, total[2 * experts]
        return (self.balance * balance + self.z * squared) * self.scale


@dataclass(frozen=True)
class RouterReport:
    """Means over tokens and layers."""

    balance: float             # load-balancing loss; k if all experts are chosen equally often
    z: float                   # router z-loss
    shares: list[list[float]]  # (L, E): the fraction of tokens of each expert; each layer's sum is 1


class Balance:
    """The load of all experts of a model, step by step, while it is trained.

    f is a count over the whole step before, on all ranks: so the loss is a plain sum over tokens, and neither
    micro-batches nor ranks change it (a balance of the global batch, Qiu et al. 2025). The first step has no f.
    """

    def __init__(self, model: nn.Module, device: torch.device):
        self.layers = [module for module in model.modules() if isinstance(module, Experts)]
        self.experts = experts = self.layers[0].experts if self.layers else 0
        count = len(self.layers)
        # apart from each other, since torch.compile is slow with views of one tensor that are written to
        self.sums = [torch.zeros(2 * experts + 2, dtype=torch.float64, device=device) for _ in self.layers]
        self.share = torch.zeros(count, experts, device=device)
        self.scale = torch.zeros(count, device=device)
        self.totals = torch.zeros(count, experts + 3, dtype=torch.float64, device=device)    # over all steps
        rows = torch.ones(1, dtype=torch.bool, device=device)
        self.meters = [
            RouterMeter(sums, share, scale, layer.settings.balance_loss, layer.settings.router_z_loss, rows)
            for layer, sums, share, scale in zip(self.layers, self.sums, self.share, self.scale, strict=True)
        ]

    def begin(self) -> None:
        """Before a step."""
        for sums in self.sums:
            sums.zero_()

    @contextmanager
    def measure(self, batch: Batch) -> Iterator[None]:
        """Inside, the routers measure and balance a micro-batch."""
        rows = batch.loss_mask.view(len(batch.tokens), -1).any(1) if self.layers else None
        for layer, meter in zip(self.layers, self.meters, strict=True):
            assert rows is not None
            meter.rows, layer.meter = rows, meter
        try:
            yield
        finally:
            for layer in self.layers:
                layer.meter = None

    def update(self, targets: Tensor) -> None:
        """After a step with so many targets, when the sums are those of all ranks."""
        if not self.layers:
            return
        sums = torch.stack(self.sums)
        counts, p, (z, tokens) = sums[:, : self.experts], sums[:, self.experts : -2], sums[:, -2:].mT
        seen = tokens.clamp(min=1)
        self.share.copy_(counts / seen[:, None])
        self.scale.copy_(targets / seen / len(self.layers))
        balance = self.experts * (counts * p).sum(-1) / seen
        self.totals += torch.cat([counts, torch.stack([balance, z, tokens], -1)], -1)

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on, for a checkpoint."""
        parts = {"share": self.share, "scale": self.scale, "totals": self.totals}
        return {f"experts.{name}": part for name, part in parts.items()} if self.layers else {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, part in self.tensors().items():
            part.copy_(tensors[name])


def report_experts(totals: list[list[float]], before: list[list[float]]) -> RouterReport | None:
    """Of the steps between two readings of `Balance.totals`; None: no token was routed."""
    rows = torch.tensor(totals, dtype=torch.float64)
    rows = rows - torch.tensor(before, dtype=torch.float64) if before else rows
    if not len(rows) or not rows[:, -1].all():
        return None
    counts, (balance, z, tokens) = rows[:, :-3], rows[:, -3:].mT
    shares = (counts / counts.sum(-1, keepdim=True)).tolist()
    return RouterReport(float((balance / tokens).mean()), float((z / tokens).mean()), shares)

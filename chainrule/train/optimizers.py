"""What changes the weights once the gradients are known: SGD, AdamW, Muon.

Muon (Jordan et al. 2024) is momentum whose direction is made orthogonal, for the matrices of hidden layers; the rest is
AdamW's. A matrix that holds several maps, such as queries, keys and values, is as many matrices to it. They go through
Newton–Schulz in stacks of one shape, so a deep model needs no more launches than a shallow one. Steps are scaled to the
length of AdamW's (Liu et al. 2025), so that one learning rate serves both.

Shapes: N matrices of one shape, A x B.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.device import multiplies_bfloat16
from chainrule.models.maps import Maps
from chainrule.recipe import Gradient
from chainrule.train.parallel import buckets
from chainrule.train.shards import is_shared, local, share_of, whole

QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of aX + bX³ + cX⁵, which brings all singular values near 1 in ROUNDS."""

ROUNDS = 5
MATRIX_MODULES = (nn.Linear, nn.RNNBase, nn.RNNCellBase)

Named = list[tuple[str, nn.Parameter]]


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


class Muon(torch.optim.Optimizer):
    """As torch.optim.Muon with match_rms_adamw, in stacks. `lr` may be a tensor, for CUDA graphs."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        parts: Mapping[Tensor, list[int]] = {},    # rows of the maps that a matrix holds, where it holds several
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.parts = parts

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if matrices:
                self._change(matrices, group["lr"], group["momentum"], group["weight_decay"])

    def _change(self, matrices: list[Tensor], lr: float | Tensor, momentum: float, decay: float) -> None:
        gradients: list[Any] = [local(matrix.grad) for matrix in matrices]  # type: ignore[arg-type]
        velocities = [local(self._velocity(matrix)) for matrix in matrices]
        torch._foreach_lerp_(velocities, gradients, 1 - momentum)
        directions = torch._foreach_lerp(gradients, velocities, momentum)      # Nesterov's
        torch._foreach_mul_([local(matrix) for matrix in matrices], 1 - lr * decay)
        if is_shared(matrices[0]):
            self._add_to_shares(matrices, iter(directions), lr)
        else:
            self._add(matrices, matrices, directions, lr)

    def _add_to_shares(self, matrices: list[Tensor], directions: Iterator[Tensor], lr: float | Tensor) -> None:
        """As `_add`: a few directions at a time are made whole, and each rank takes its shares of what they become."""
        for some in buckets(matrices):
            ways = [whole(next(directions), matrix) for matrix in some]
            changes = [torch.zeros_like(way) for way in ways]
            self._add(some, changes, ways, lr)
            shares = [share_of(change, matrix) for change, matrix in zip(changes, some, strict=True)]
            torch._foreach_add_([local(matrix) for matrix in some], shares)

    def _add(
        self, matrices: list[Tensor], values: list[Tensor], directions: Iterable[Tensor], lr: float | Tensor
    ) -> None:
        """To the values of matrices, their directions made orthogonal."""
        maps, ways = self._maps(matrices, values), self._maps(matrices, directions)
        for places in _alike(maps):
            stack = torch.stack([ways[place] for place in places])
            length = -0.2 * math.sqrt(max(stack.shape[1:]))
            stack = (newton_schulz(stack).float() * (length * lr)).contiguous()
            torch._foreach_add_([maps[place] for place in places], list(stack.unbind()))

    def _maps(self, matrices: list[Tensor], values: Iterable[Tensor]) -> list[Tensor]:
        """Views of the maps in the values of matrices."""
        pairs = zip(matrices, values, strict=True)
        return [part for matrix, value in pairs for part in torch.split(value, self.parts.get(matrix, [len(value)]))]

    def _velocity(self, matrix: Tensor) -> Tensor:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


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


def sort_parameters(model: nn.Module, vocab: int) -> tuple[Named, Named, Named]:
    """Matrices of hidden layers, the output's matrix, and the rest: embeddings, norms, biases."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    inside = {
        id(parameter): module
        for module in model.modules() if isinstance(module, MATRIX_MODULES)
        for parameter in module.parameters(recurse=False) if parameter.dim() == 2
    }
    ends = [module for module in inside.values() if isinstance(module, nn.Linear) and module.out_features == vocab]
    output = [(name, parameter) for name, parameter in named if ends and inside.get(id(parameter)) is ends[-1]]
    aside = {id(parameter) for _, parameter in output}
    hidden = [(name, parameter) for name, parameter in named if id(parameter) in inside and id(parameter) not in aside]
    aside |= {id(parameter) for _, parameter in hidden}
    return hidden, output, [(name, parameter) for name, parameter in named if id(parameter) not in aside]


class Optimizers:
    """One or two of torch's optimizers as one, with names for their tensors so that they can be saved."""

    def __init__(self, model: nn.Module, vocab: int, settings: Gradient):
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        hidden, output, rest = ([parameter for _, parameter in some] for some in sort_parameters(model, vocab))
        decay = _or(settings.weight_decay, 0.0 if settings.optimizer == "sgd" else 0.1)
        self.all: list[torch.optim.Optimizer] = []
        if settings.optimizer == "muon" and hidden:
            lr, momentum = _rate(settings.lr, hidden), _or(settings.momentum, 0.95)
            self.all.append(Muon(hidden, lr, momentum, decay, maps_of(model)))
            hidden = []
        groups = [{"params": hidden + output, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
        self.all += [_plain(some, settings)] if (some := [group for group in groups if group["params"]]) else []
        self.highest = [float(group["lr"]) for group in self.groups()]

    def set_rate(self, factor: float) -> None:
        """Each learning rate at `factor` times its highest."""
        for group, highest in zip(self.groups(), self.highest, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(factor * highest)
            else:
                group["lr"] = factor * highest

    def step(self) -> None:
        for optimizer in self.all:
            optimizer.step()

    def forget_gradients(self) -> None:
        for optimizer in self.all:
            optimizer.zero_grad(set_to_none=True)

    @contextmanager
    def capturable(self) -> Iterator[None]:
        """While a CUDA graph of `step` is captured. Not longer: outside one, torch warns of it."""
        groups = [group for group in self.groups() if "capturable" in group]
        for group in groups:
            group["capturable"] = True
        try:
            yield
        finally:
            for group in groups:
                group["capturable"] = False

    def tensors(self) -> dict[str, Tensor]:
        """Everything they remember: weight's name/what it is -> tensor."""
        return {
            f"{self.names[id(parameter)]}/{what}": value
            for optimizer in self.all
            for parameter, remembered in optimizer.state.items()
            for what, value in remembered.items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Go on with what `tensors` gave."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            name, _, what = key.rpartition("/")
            by_name.setdefault(name, {})[what] = tensor
        for optimizer in self.all:
            state = optimizer.state_dict()
            places = zip(_each(optimizer.param_groups), _each(state["param_groups"]), strict=True)
            names = [(place, self.names[id(parameter)]) for parameter, place in places]
            state["state"] = {place: by_name[name] for place, name in names if name in by_name}
            optimizer.load_state_dict(state)

    def groups(self) -> Iterator[dict[str, Any]]:
        for optimizer in self.all:
            yield from optimizer.param_groups


def _each(groups: list[dict[str, Any]]) -> Iterator[Any]:
    for group in groups:
        yield from group["params"]


def _plain(groups: list[dict[str, Any]], settings: Gradient) -> torch.optim.Optimizer:
    lr: Any = _rate(_or(settings.rest_lr, settings.lr), groups[0]["params"])
    if settings.optimizer == "sgd":
        fused = not is_shared(groups[0]["params"][0])      # torch has no fused SGD of shards
        return torch.optim.SGD(groups, lr, momentum=_or(settings.momentum, 0.0), fused=fused)
    return torch.optim.AdamW(groups, lr, betas=(settings.betas[0], settings.betas[1]), fused=True)


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given


def _rate(lr: float, parameters: list[Any]) -> float | Tensor:
    """On a GPU a tensor, which can change between the replays of a CUDA graph."""
    return torch.tensor(lr, device=parameters[0].device) if parameters[0].is_cuda else lr

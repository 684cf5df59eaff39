"""Stacks of recurrent layers, in one direction or both: each layer reads the hidden vectors of the one below.

They run in fused kernels. `written_out` computes the same with the cells of cells.py and gives every hidden vector and
gate besides; a seed drops the same numbers either way. State: vectors by name, (B, L, K·H).

With `lengths`, each 1 or more, padding on the right is never read: a row ends, and its way back begins, before it.

Shapes: B rows, T tokens, D inputs, L layers, H hidden units, K directions, G gates.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from chainrule.layers import cudnn
from chainrule.layers.cells import CELLS, Vectors, Weights
from chainrule.layers.cudnn import run_fused
from chainrule.model import Tap


class Stack(nn.Module):
    first: Tensor    # (carried, L, K·H) the state before anything is read

    def __init__(
        self,
        cell: str,                          # tanh, relu or sigmoid (Elman), gru, lstm
        inputs: int,
        hidden: int,
        layers: int,
        *,
        directions: int = 1,                # 2: each layer reads both directions of the one below
        between: nn.Module | None = None,   # what happens between layers, such as dropout
        weight_dropout: float = 0.0,        # share of W dropped while learning, once a batch (Merity et al. 2018)
        learned_start: bool = False,        # the first state is learned, else it is zero
    ):
        super().__init__()
        self.carried, self.seen, self.width = CELLS[cell].carried, CELLS[cell].seen, directions * hidden
        self.gates = CELLS[cell].gates      # names of those that can be seen
        sizes = [inputs, *[self.width] * (layers - 1)]
        self.layers = nn.ModuleList(Layer(cell, size, hidden, directions, weight_dropout) for size in sizes)
        self.between = between or nn.Identity()
        zeros = torch.zeros(len(self.carried), layers, self.width)
        if learned_start:
            self.first = nn.Parameter(zeros)
        else:
            self.register_buffer("first", zeros, persistent=False)

    def start(self, rows: int) -> Vectors:
        return {name: first.expand(rows, -1, -1) for name, first in zip(self.carried, self.first)}

    def forward(self, x: Tensor, state: Vectors, lengths: Tensor | None = None) -> tuple[Tensor, Vectors]:
        """(B, T, D) -> (B, T, K·H) of the last layer, zero where there is padding; and the state at each row's end."""
        states = []
        lengths = None if lengths is None else lengths.cpu()    # where they are needed, and once for all layers
        for number, layer in enumerate(self.layers):
            x, after = layer(self.between(x) if number else x, _of_layer(state, number), lengths)
            states.append(after)
        return x, _stack(states, 1)

    def written_out(
        self, x: Tensor, state: Vectors, lengths: Tensor | None = None
    ) -> tuple[Tensor, Vectors, Vectors]:
        """As forward, and all that can be seen: (B, T, L, K·H) hidden and cell, (B, T, L, G, K·H) gates."""
        states, seen = [], []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            x, after, moments = layer.written_out(self.between(x) if number else x, _of_layer(state, number), lengths)
            states.append(after)
            seen.append(moments)
        return x, _stack(states, 1), _stack(seen, 2)


class Layer(nn.Module):
    """One layer of a stack. A module of torch holds the weights, for it knows how cuDNN wants them to lie."""

    def __init__(self, cell: str, inputs: int, hidden: int, directions: int, weight_dropout: float):
        super().__init__()
        self.cell, self.hidden, self.directions, self.weight_dropout = cell, hidden, directions, weight_dropout
        self.carried, self.seen, self.step = CELLS[cell].carried, CELLS[cell].seen, CELLS[cell].step
        self.held = CELLS[cell].module(inputs, hidden, bidirectional=directions == 2)
        self.moment = Tap()                       # (B, 1, H): h of one token, where it goes on to the next and upward

    def weights(self) -> list[Weights]:
        """Those of each direction, with some of W dropped while learning."""
        every = [Weights(*weights) for weights in self.held.all_weights]
        if not self.training or self.weight_dropout == 0:
            return every
        return [weights._replace(W=dropout(weights.W, self.weight_dropout)) for weights in every]

    def forward(self, x: Tensor, state: Vectors, lengths: Tensor | None) -> tuple[Tensor, Vectors]:
        """(B, T, D), (B, K·H) -> (B, T, K·H), (B, K·H)"""
        weights = self.weights()
        precision = weights[0].W.dtype       # that of the state, even where a kernel works in a lower one
        first = [self._by_direction(state[name].to(precision)) for name in self.carried]
        if cudnn.is_worth_it(x, self.hidden):
            outputs, last = self._run_wide(x, first, weights, lengths)
        else:
            outputs, last = run_fused(self.cell, x, first, weights, lengths)
        after = {name: part.transpose(0, 1).flatten(1).to(precision) for name, part in zip(self.carried, last)}
        return outputs.contiguous(), after    # a mask is drawn in the order of memory: here, too, rows come first

    def _run_wide(
        self, x: Tensor, first: list[Tensor], weights: list[Weights], lengths: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        weights, first = [cudnn.widen_weights(one) for one in weights], [cudnn.widen(part) for part in first]
        outputs, last = run_fused(self.cell, cudnn.widen(x), first, weights, lengths)
        return cudnn.narrow(outputs, self.hidden, self.directions), [cudnn.narrow(part, self.hidden) for part in last]

    def _by_direction(self, part: Tensor) -> Tensor:
        """(B, K·H) -> (K, B, H)"""
        return part.view(len(part), self.directions, self.hidden).transpose(0, 1).contiguous()

    def written_out(self, x: Tensor, state: Vectors, lengths: Tensor | None) -> tuple[Tensor, Vectors, Vectors]:
        runs = []
        for direction, weights in enumerate(self.weights()):
            start = {name: part.chunk(self.directions, -1)[direction] for name, part in state.items()}
            runs.append(self._run(x, start, weights, lengths, backward=direction == 1))
        after = {name: torch.cat([last[name] for last, _ in runs], -1).to(state[name]) for name in self.carried}
        seen = {name: torch.cat([moments[name] for _, moments in runs], -1) for name in self.seen}
        return seen["hidden"], after, seen

    def _run(
        self, x: Tensor, now: Vectors, weights: Weights, lengths: Tensor | None, backward: bool
    ) -> tuple[Vectors, Vectors]:
        """One direction over all tokens: what is carried at the end, and (B, T, …) what was seen at every token."""
        Ux = linear(x, weights.U, weights.b_U)
        moments: list[Vectors] = []
        for t in reversed(range(x.shape[1])) if backward else range(x.shape[1]):
            moment = self.step(Ux[:, t], now, weights)
            moment["hidden"] = self.moment(moment["hidden"][:, None])[:, 0]
            if lengths is not None:
                moment, now = _hidden_from_padding(moment, now, t < lengths)
            else:
                now = {name: moment[name] for name in self.carried}
            moments.append(moment)
        return now, _stack(moments[::-1] if backward else moments, 1)


def _hidden_from_padding(moment: Vectors, before: Vectors, real: Tensor) -> tuple[Vectors, Vectors]:
    """Where a row has padding nothing is seen, and what it carries stays as it was."""
    seen = {name: part.where(real.view(-1, *[1] * (part.dim() - 1)), 0) for name, part in moment.items()}
    return seen, {name: moment[name].where(real[:, None], part) for name, part in before.items()}


def _of_layer(state: Vectors, number: int) -> Vectors:
    return {name: part[:, number] for name, part in state.items()}


def _stack(parts: list[Vectors], axis: int) -> Vectors:
    return {name: torch.stack([part[name] for part in parts], axis) for name in parts[0]}

"""Stacked recurrent layers, unidirectional or bidirectional: each layer reads the hidden states of the one below.

`forward` runs the fused kernels of cudnn.py. `unrolled` computes the same with the cells of cells.py, one time step
after another, and also returns every hidden state and gate; with the same seed both apply the same dropout masks.

With `lengths`, each at least 1, padding on the right is never read: both directions run over the real tokens only.

Shapes: B rows, T tokens, D inputs, L layers, H hidden units, K directions, G gates. State: by name, (B, L, K·H).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule.kernels.cpu.dropout import dropout
from chainrule.layers import cudnn
from chainrule.layers.cells import CELLS, Vectors, Weights
from chainrule.model import Tap


class RecurrentStack(nn.Module):
    initial: Tensor    # (vectors of the state, L, K·H): the state before the first token

    def __init__(
        self,
        cell: str,                          # tanh, relu or sigmoid (Elman), gru, lstm
        inputs: int,
        hidden: int,
        layers: int,
        *,
        directions: int = 1,                # 2: each layer reads both directions of the one below
        between: nn.Module | None = None,   # applied between layers, such as dropout
        weight_dropout: float = 0.0,        # dropout of W, one mask for each batch (Merity et al. 2018)
        learned_start: bool = False,        # the initial state is a parameter; otherwise it is zero
    ):
        super().__init__()
        self.state_names, self.activations, self.width = CELLS[cell].state, CELLS[cell].activations, directions * hidden
        self.gates = CELLS[cell].gates
        sizes = [inputs, *[self.width] * (layers - 1)]
        self.layers = nn.ModuleList(RecurrentLayer(cell, size, hidden, directions, weight_dropout) for size in sizes)
        self.between = between or nn.Identity()
        zeros = torch.zeros(len(self.state_names), layers, self.width)
        if learned_start:
            self.initial = nn.Parameter(zeros)
        else:
            self.register_buffer("initial", zeros, persistent=False)

    def start(self, rows: int) -> Vectors:
        return {name: initial.expand(rows, -1, -1) for name, initial in zip(self.state_names, self.initial)}

    def forward(self, x: Tensor, state: Vectors, lengths: Tensor | None = None) -> tuple[Tensor, Vectors]:
        """(B, T, D) -> (B, T, K·H) of the last layer, zero at padding; and the state at the end of each row."""
        states = []
        if lengths is not None and not cudnn.reads_padding(x):
            lengths = lengths.cpu()                        # packing needs them there; once for all layers
        for number, layer in enumerate(self.layers):
            x, after = layer(self.between(x) if number else x, _of_layer(state, number), lengths)
            states.append(after)
        return x, _stack(states, 1)

    def unrolled(
        self, x: Tensor, state: Vectors, lengths: Tensor | None = None
    ) -> tuple[Tensor, Vectors, Vectors]:
        """As forward, and all activations: (B, T, L, K·H) hidden and cell, (B, T, L, G, K·H) gates."""
        states, activations = [], []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, RecurrentLayer)
            x, after, inside = layer.unrolled(self.between(x) if number else x, _of_layer(state, number), lengths)
            states.append(after)
            activations.append(inside)
        return x, _stack(states, 1), _stack(activations, 2)


class RecurrentLayer(nn.Module):
    """One layer of a stack. A module of torch holds the weights, because it knows the memory layout of cuDNN."""

    def __init__(self, cell: str, inputs: int, hidden: int, directions: int, weight_dropout: float):
        super().__init__()
        self.cell, self.hidden, self.directions, self.weight_dropout = cell, hidden, directions, weight_dropout
        self.state_names, self.activations, self.step = CELLS[cell].state, CELLS[cell].activations, CELLS[cell].step
        self.rnn = CELLS[cell].module(inputs, hidden, bidirectional=directions == 2)
        self.moment = Tap()                       # (B, 1, H): h of one time step, where it goes to the next and upward
        if "cell" in self.state_names:
            self.cell_moment = Tap()              # (B, H): c of one time step, for its h and for the next

    def weights(self) -> list[Weights]:
        """Those of each direction; during training with dropout of W."""
        every = [Weights(*weights) for weights in self.rnn.all_weights]
        if not self.training or self.weight_dropout == 0:
            return every
        return [weights._replace(W=dropout(weights.W, self.weight_dropout)) for weights in every]

    def forward(self, x: Tensor, state: Vectors, lengths: Tensor | None) -> tuple[Tensor, Vectors]:
        """(B, T, D), (B, K·H) -> (B, T, K·H), (B, K·H)"""
        if CELLS[self.cell].kernel is None:
            hidden, after, _ = self.unrolled(x, state, None if lengths is None else lengths.to(x.device))
            return hidden, after
        weights = self.weights()
        precision = weights[0].W.dtype       # that of the state, even where a kernel computes in a lower one
        initial = [self._by_direction(state[name].to(precision)) for name in self.state_names]
        run = cudnn.run_padded if cudnn.should_pad(x, self.hidden) else cudnn.run_fused
        outputs, last = run(self.cell, x, initial, weights, lengths)
        after = {name: part.transpose(0, 1).flatten(1).to(precision) for name, part in zip(self.state_names, last)}
        return outputs.contiguous(), after    # a dropout mask is drawn in memory order: keep rows first

    def _by_direction(self, part: Tensor) -> Tensor:
        """(B, K·H) -> (K, B, H)"""
        return part.view(len(part), self.directions, self.hidden).transpose(0, 1).contiguous()

    def unrolled(self, x: Tensor, state: Vectors, lengths: Tensor | None) -> tuple[Tensor, Vectors, Vectors]:
        if self.cell == "identity" and torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):    # h has no bound, nor would rounding errors
                return self.unrolled(x.to(state["hidden"].dtype), state, lengths)
        runs = []
        for direction, weights in enumerate(self.weights()):
            start = {name: part.chunk(self.directions, -1)[direction] for name, part in state.items()}
            runs.append(self._unroll(x, start, weights, lengths, backward=direction == 1))
        after = {name: torch.cat([last[name] for last, _ in runs], -1).to(state[name]) for name in self.state_names}
        activations = {name: torch.cat([inside[name] for _, inside in runs], -1) for name in self.activations}
        return activations["hidden"], after, activations

    def _unroll(
        self, x: Tensor, state: Vectors, weights: Weights, lengths: Tensor | None, backward: bool
    ) -> tuple[Vectors, Vectors]:
        """One direction over all time steps: the state after the last, and (B, T, …) the activations of each."""
        Ux = linear(x, weights.U, weights.b_U)
        steps: list[Vectors] = []
        for t in reversed(range(x.shape[1])) if backward else range(x.shape[1]):
            now = self.step(Ux[:, t], state, weights)
            now["hidden"] = self.moment(now["hidden"][:, None])[:, 0]
            if "cell" in now:
                self.cell_moment(now["cell"])    # the tensor itself, so that its gradient includes that of its h
            if lengths is not None:
                now, state = _skip_padding(now, state, t < lengths)
            else:
                state = {name: now[name] for name in self.state_names}
            steps.append(now)
        return state, _stack(steps[::-1] if backward else steps, 1)


def _skip_padding(now: Vectors, before: Vectors, real: Tensor) -> tuple[Vectors, Vectors]:
    """At padding the activations are zero, and the state stays as it was."""
    activations = {name: part.where(real.view(-1, *[1] * (part.dim() - 1)), 0) for name, part in now.items()}
    return activations, {name: now[name].where(real[:, None], part) for name, part in before.items()}


def _of_layer(state: Vectors, number: int) -> Vectors:
    return {name: part[:, number] for name, part in state.items()}


def _stack(parts: list[Vectors], axis: int) -> Vectors:
    return {name: torch.stack([part[name] for part in parts], axis) for name in parts[0]}

"""Recurrent cells: Elman, GRU and LSTM, one time step each. W multiplies the hidden state h, U the input x.

    Elman    h' = σ(Wh + Ux + b), where σ is tanh, relu, the logistic function or the identity
    GRU      r, z = σ(Wh + Ux + b);  n = tanh(Ux + b_U + r∗(Wh + b_W));  h' = (1 - z)∗n + z∗h
    LSTM     f, i, o = σ(W·[h, x] + b);  C̃ = tanh(W_C·[h, x] + b_C);  C' = f∗C + i∗C̃;  h' = o∗tanh(C')

The W, U and b of a cell's gates are stacked in one matrix each, in torch's order.

Shapes: B rows, D inputs, H hidden units, G gates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Vectors: TypeAlias = dict[str, Tensor]
"""Named vectors of a cell: its state (`hidden`, `cell`), and its gates."""


class Weights(NamedTuple):
    """Of one direction of one layer, in torch's order."""

    U: Tensor      # (G·H, D)
    W: Tensor      # (G·H, H)
    b_U: Tensor    # (G·H,); b is b_U + b_W, and only a GRU needs two
    b_W: Tensor    # (G·H,)


Step: TypeAlias = Callable[[Tensor, Vectors, Weights], Vectors]
"""Ux + b_U (B, G·H), and the state (B, H) -> the next state, and the gates."""


@dataclass(frozen=True)
class Cell:
    state: tuple[str, ...]               # names of the vectors of its state
    activations: tuple[str, ...]         # names of all that a tap can watch
    gates: tuple[str, ...]               # names of the gates, in the order of the `gates` activation
    step: Step
    module: Callable[..., nn.RNNBase]    # of torch; holds the weights in the memory layout of cuDNN
    kernel: Callable[..., Any] | None    # of torch; runs all time steps at once; None: there is no such kernel


def elman_step(activation: Callable[[Tensor], Tensor]) -> Step:
    def step(Ux: Tensor, before: Vectors, weights: Weights) -> Vectors:
        return {"hidden": activation(linear(before["hidden"], weights.W, weights.b_W) + Ux)}

    return step


def gru_step(Ux: Tensor, before: Vectors, weights: Weights) -> Vectors:
    h = before["hidden"]
    Wh = linear(h, weights.W, weights.b_W)
    (Ux_r, Ux_z, Ux_n), (Wh_r, Wh_z, Wh_n) = Ux.chunk(3, -1), Wh.chunk(3, -1)
    r, z = torch.sigmoid(Ux_r + Wh_r), torch.sigmoid(Ux_z + Wh_z)
    n = torch.tanh(Ux_n + r * Wh_n)
    return {"hidden": (1 - z) * n + z * h, "gates": torch.stack([r, z], -2)}


def lstm_step(Ux: Tensor, before: Vectors, weights: Weights) -> Vectors:
    h, C = before["hidden"], before["cell"]
    i, f, candidate, o = (linear(h, weights.W, weights.b_W) + Ux).chunk(4, -1)
    i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
    candidate = torch.tanh(candidate)
    C = f * C + i * candidate
    return {"hidden": o * torch.tanh(C), "cell": C, "gates": torch.stack([i, f, candidate, o], -2)}


CELLS: Mapping[str, Cell] = {    # an Elman cell is named by its σ; sigmoid runs on tanh's kernel (cudnn.py)
    "tanh": Cell(("hidden",), ("hidden",), (), elman_step(torch.tanh), nn.RNN, torch.rnn_tanh),
    "relu": Cell(("hidden",), ("hidden",), (), elman_step(torch.relu), nn.RNN, torch.rnn_relu),
    "sigmoid": Cell(("hidden",), ("hidden",), (), elman_step(torch.sigmoid), nn.RNN, torch.rnn_tanh),
    "identity": Cell(("hidden",), ("hidden",), (), elman_step(lambda z: z), nn.RNN, None),
    "gru": Cell(("hidden",), ("hidden", "gates"), ("reset", "update"), gru_step, nn.GRU, torch.gru),
    "lstm": Cell(
        ("hidden", "cell"), ("hidden", "cell", "gates"), ("input", "forget", "candidate", "output"),
        lstm_step, nn.LSTM, torch.lstm,
    ),
}

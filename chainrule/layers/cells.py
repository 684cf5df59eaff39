"""The recurrent cells, written out as they are lectured. W acts on h, what is remembered; U on x, what is read.

    Elman    h' = σ(Wh + Ux + b), where σ is tanh, relu or the logistic function
    GRU      r, z = σ(Wh + Ux + b);  n = tanh(Ux + b_U + r∗(Wh + b_W));  h' = (1 - z)∗n + z∗h
    LSTM     f, i, o = σ(W·[h, x] + b);  C̃ = tanh(W_C·[h, x] + b_C);  C' = f∗C + i∗C̃;  h' = o∗tanh(C')

The gates of a cell have each its own W, U and b, which stand one below the other in one matrix, in torch's order.

Shapes: B rows, D inputs, H hidden units, G gates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Vectors: TypeAlias = dict[str, Tensor]
"""What a cell carries from token to token, and what else may be seen in it, by name."""


class Weights(NamedTuple):
    """Of one direction of one layer, in torch's order."""

    U: Tensor      # (G·H, D)
    W: Tensor      # (G·H, H)
    b_U: Tensor    # (G·H,); b is b_U + b_W, and only a GRU has a use for two
    b_W: Tensor    # (G·H,)


Step: TypeAlias = Callable[[Tensor, Vectors, Weights], Vectors]
"""Ux + b_U (B, G·H), and what is carried (B, H) -> what is carried next, and seen."""


@dataclass(frozen=True)
class Cell:
    carried: tuple[str, ...]             # the vectors of its state
    seen: tuple[str, ...]                # what a tap can watch
    gates: tuple[str, ...]               # their names, in the order in which they are seen
    step: Step
    module: Callable[..., nn.RNNBase]    # of torch, which holds the weights as cuDNN likes
    kernel: Callable[..., Any]           # of torch: all tokens at once


def elman(squash: Callable[[Tensor], Tensor]) -> Step:
    def step(Ux: Tensor, before: Vectors, weights: Weights) -> Vectors:
        return {"hidden": squash(linear(before["hidden"], weights.W, weights.b_W) + Ux)}

    return step


def gru(Ux: Tensor, before: Vectors, weights: Weights) -> Vectors:
    h = before["hidden"]
    Wh = linear(h, weights.W, weights.b_W)
    (read_r, read_z, read_n), (kept_r, kept_z, kept_n) = Ux.chunk(3, -1), Wh.chunk(3, -1)
    r, z = torch.sigmoid(read_r + kept_r), torch.sigmoid(read_z + kept_z)
    n = torch.tanh(read_n + r * kept_n)
    return {"hidden": (1 - z) * n + z * h, "gates": torch.stack([r, z], -2)}


def lstm(Ux: Tensor, before: Vectors, weights: Weights) -> Vectors:
    h, C = before["hidden"], before["cell"]
    i, f, candidate, o = (linear(h, weights.W, weights.b_W) + Ux).chunk(4, -1)
    i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
    candidate = torch.tanh(candidate)
    C = f * C + i * candidate
    return {"hidden": o * torch.tanh(C), "cell": C, "gates": torch.stack([i, f, candidate, o], -2)}


CELLS: Mapping[str, Cell] = {    # an Elman cell goes by its σ; sigmoid makes do with tanh's kernel (fused.py)
    "tanh": Cell(("hidden",), ("hidden",), (), elman(torch.tanh), nn.RNN, torch.rnn_tanh),
    "relu": Cell(("hidden",), ("hidden",), (), elman(torch.relu), nn.RNN, torch.rnn_relu),
    "sigmoid": Cell(("hidden",), ("hidden",), (), elman(torch.sigmoid), nn.RNN, torch.rnn_tanh),
    "gru": Cell(("hidden",), ("hidden", "gates"), ("reset", "update"), gru, nn.GRU, torch.gru),
    "lstm": Cell(
        ("hidden", "cell"), ("hidden", "cell", "gates"), ("input", "forget", "candidate", "output"),
        lstm, nn.LSTM, torch.lstm,
    ),
}

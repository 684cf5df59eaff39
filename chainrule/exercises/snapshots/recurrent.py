"""Snapshots of the lesson recurrent: elman, lstm."""

from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy, linear

from chainrule.layers.cells import CELLS, Weights

Random = np.random.Generator


def elman(random: Random) -> dict[str, Any]:
    steps, inputs, hidden, outputs = 6, 3, 4, 5
    sizes = {
        "W": (hidden, hidden),
        "U": (hidden, inputs),
        "b_h": (hidden,),
        "V": (outputs, hidden),
        "b_y": (outputs,),
        "h0": (hidden,),
    }
    given = {name: torch.from_numpy(random.normal(size=size)).requires_grad_() for name, size in sizes.items()}
    x, targets = (
        torch.from_numpy(random.normal(size=(steps, inputs))),
        torch.from_numpy(random.integers(0, outputs, steps)),
    )
    weights = Weights(given["U"], given["W"], given["b_h"], torch.zeros_like(given["b_h"]))
    h, every = {"hidden": given["h0"][None]}, []
    for row in x:
        h = CELLS["tanh"].step(linear(row[None], weights.U, weights.b_U), h, weights)
        every.append(h["hidden"][0])
    hs = torch.stack(every)
    y = linear(hs, given["V"], given["b_y"])
    loss = cross_entropy(y, targets, reduction="sum")
    gradients = torch.autograd.grad(loss, list(given.values()))
    return {
        **given,
        "x": x,
        "targets": targets,
        "h": hs,
        "y": y,
        "loss": loss,
        **{f"d{name}": gradient for name, gradient in zip(given, gradients)},
    }


def lstm(random: Random) -> dict[str, Any]:
    rows, steps, inputs, hidden = 2, 5, 3, 4
    W = {gate: torch.from_numpy(random.normal(size=(hidden, hidden + inputs))) for gate in "fioC"}
    b = {gate: torch.from_numpy(random.normal(size=hidden)) for gate in "fioC"}
    x = torch.from_numpy(random.normal(size=(rows, steps, inputs)))
    h0, C0 = (torch.from_numpy(random.normal(size=(rows, hidden))) for _ in range(2))
    order = "ifCo"  # the cell's: input, forget, candidate, output
    both, bias = torch.cat([W[gate] for gate in order]), torch.cat([b[gate] for gate in order])
    weights = Weights(both[:, hidden:], both[:, :hidden], bias, torch.zeros_like(bias))
    state, hs, Cs = {"hidden": h0, "cell": C0}, [], []
    for t in range(steps):
        state = CELLS["lstm"].step(linear(x[:, t], weights.U, weights.b_U), state, weights)
        hs.append(state["hidden"])
        Cs.append(state["cell"])
    return {
        **{f"W_{gate}": W[gate] for gate in W},
        **{f"b_{gate}": b[gate] for gate in b},
        "x": x,
        "h0": h0,
        "C0": C0,
        "h": torch.stack(hs, 1),
        "C1": Cs[0],
        "C": Cs[-1],
    }

"""A recurrent network unrolled in time: Elman, GRU or LSTM, with every number (cells.py has the formulas).

Shapes: T tokens, L layers, H hidden units, G gates, E embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chainrule.layers.cells import Weights
from chainrule.layers.embedding import TokenEmbedding
from chainrule.layers.recurrent import RecurrentLayer, RecurrentStack
from chainrule.viewer.network import TIME, Input, Network, raised
from chainrule.viewer.subject import Subject

SQUASH = {"tanh": "tanh", "relu": "relu", "sigmoid": "σ"}


def suits(model: Any) -> bool:
    return isinstance(getattr(model, "stack", None), RecurrentStack) and not getattr(model, "backward", 0)


def unroll(subject: Subject, tokens: Tensor) -> Network:
    model, network = subject.model, Network(TIME)
    logits, seen = subject.trace(tokens, *model.activations)
    embedding = model.embedding.weight
    read = embedding[tokens[0]]
    x = network.add("x", "what is read", "x_t = E[w_t]", "lookup", [], read, matrix=embedding)
    for number, layer in enumerate(model.stack.layers):
        first = dict(zip(model.stack.state_names, model.stack.initial[:, number]))
        lived = Lived(network, layer, {name: part[0, :, number] for name, part in seen.items()}, first,
                      read, x, raised(number + 1) if len(model.stack.layers) > 1 else "")
        x = CELLS.get(layer.cell, elman)(lived)
        read = lived.seen["hidden"]
    _answer(network, model.embedding, x, read, logits[0])
    return network


@dataclass(frozen=True)
class Lived:
    """One layer, and what it has gone through."""

    network: Network
    layer: RecurrentLayer
    seen: Mapping[str, Tensor]     # (T, H) hidden and cell, (T, G, H) gates
    first: Mapping[str, Tensor]    # (H,) hidden, and cell, before anything was read
    read: Tensor                   # (T, E) what it reads
    x: str                         # the node of that
    mark: str                      # which layer it is, where there are several

    @property
    def weights(self) -> Weights:
        return self.layer.weights()[0]

    def before(self, name: str) -> Tensor:
        """(T, H) as it was when each token came."""
        return torch.cat([self.first[name][None], self.seen[name][:-1]])

    def add(self, symbol: str, name: str, formula: str, rule: str, *inputs: Input | str, **facts: Any) -> str:
        return self.network.add(symbol + self.mark, name, formula, rule, inputs, **facts)

    def gate(self, symbol: str, name: str, rows: slice, squash: str, values: Tensor, **facts: Any) -> str:
        """squash(W h + U x + b) of some rows of the weights."""
        weights = self.weights
        W, U, bias = weights.W[rows], weights.U[rows], weights.b_U[rows] + weights.b_W[rows]
        sums = self.before("hidden") @ W.T + self.read @ U.T + bias
        low = "" if symbol == "h" else f"_{symbol[0]}"
        formula = f"{symbol}_t = {SQUASH[squash]}(W{low} h_{{t-1}} + U{low} x_t + b{low or '_h'})"
        return self.add(symbol, name, formula, "linear", Input("h" + self.mark + ".0", "before"), self.x, values=values,
                        letters=[f"W{low}", f"U{low}"], matrices=[W, U], bias=bias, squash=squash, sums=sums, **facts)


def elman(lived: Lived) -> str:
    every = slice(len(lived.first["hidden"]))
    return lived.gate("h", "hidden vector", every, lived.layer.cell, lived.seen["hidden"], first=lived.first["hidden"])


def gru(lived: Lived) -> str:
    h, (r, z) = len(lived.first["hidden"]), lived.seen["gates"].unbind(1)
    reset = lived.gate("r", "reset gate", slice(0, h), "sigmoid", r)
    update = lived.gate("z", "update gate", slice(h, 2 * h), "sigmoid", z)
    rows, weights, before = slice(2 * h, 3 * h), lived.weights, Input("h" + lived.mark + ".0", "before")
    heard = lived.read @ weights.U[rows].T + weights.b_U[rows]
    kept = lived.before("hidden") @ weights.W[rows].T + weights.b_W[rows]
    u = lived.add("u", "what is read, weighed", "u_t = U_n x_t + b_U", "linear", lived.x, values=heard,
                  letters=["U_n"], matrices=[weights.U[rows]], bias=weights.b_U[rows])
    w = lived.add("w", "what was kept, weighed", "w_t = W_n h_{t-1} + b_W", "linear", before, values=kept,
                  letters=["W_n"], matrices=[weights.W[rows]], bias=weights.b_W[rows])
    n = lived.add("n", "candidate", "n_t = tanh(u_t + r_t ∗ w_t)", "each", u, reset, w,
                  values=torch.tanh(heard + r * kept), how="candidate")
    return lived.add("h", "hidden vector", "h_t = (1 − z_t) ∗ n_t + z_t ∗ h_{t-1}", "each", update, n, before,
                     values=lived.seen["hidden"], how="blend", first=lived.first["hidden"])


def lstm(lived: Lived) -> str:
    h = len(lived.first["hidden"])
    names = (("i", "input gate"), ("f", "forget gate"), ("C̃", "candidate"), ("o", "output gate"))
    i, f, candidate, o = (
        lived.gate(symbol, name, slice(place * h, (place + 1) * h), "tanh" if place == 2 else "sigmoid", gate)
        for place, ((symbol, name), gate) in enumerate(zip(names, lived.seen["gates"].unbind(1)))
    )
    before = Input("C" + lived.mark + ".0", "before")
    cell = lived.add("C", "cell", "C_t = f_t ∗ C_{t-1} + i_t ∗ C̃_t", "each", f, before, i, candidate,
                     values=lived.seen["cell"], how="cell", first=lived.first["cell"])
    return lived.add("h", "hidden vector", "h_t = o_t ∗ tanh(C_t)", "each", o, cell, values=lived.seen["hidden"],
                     how="shown", first=lived.first["hidden"])


CELLS = {"gru": gru, "lstm": lstm}     # any other is an Elman cell, by the name of its σ


def _answer(network: Network, embedding: TokenEmbedding, h: str, hidden: Tensor, logits: Tensor) -> None:
    """From the last hidden vector to the die."""
    if embedding.project is not None:
        matrix = embedding.project.weight
        h = network.add("g", "projected", "g_t = P h_t", "linear", [h], hidden @ matrix.T, letters=["P"],
                        matrices=[matrix])
    symbol, letter = ("g", "E") if embedding.project is not None else ("h", "V")
    matrix = embedding.output_matrix
    y = network.add("y", "logits", f"y_t = {letter} {symbol}_t + b_y", "linear", [h], logits, letters=[letter],
                    matrices=[matrix], bias=embedding.bias, labels="vocab")
    network.add("p", "the die", "p_t = softmax(y_t)", "softmax", [y], logits.softmax(-1), labels="vocab")

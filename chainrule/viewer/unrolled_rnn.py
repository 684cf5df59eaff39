"""A recurrent network unrolled in time, with every number: Elman, GRU or LSTM (layers/cells.py has the formulas).

Shapes: T tokens, L layers, H hidden units, G gates, E embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chainrule.layers.cells import Weights
from chainrule.layers.embedding import OneHotEmbedding, TokenEmbedding
from chainrule.layers.recurrent import RecurrentLayer, RecurrentStack
from chainrule.model import Model
from chainrule.viewer.network import TIME, Input, Network, superscript
from chainrule.viewer.subject import Subject

SQUASH = {"tanh": "tanh", "relu": "relu", "sigmoid": "σ", "identity": ""}


def is_recurrent(model: Model) -> bool:
    """Whether it is a stack of recurrent layers that read forward only."""
    return isinstance(getattr(model, "stack", None), RecurrentStack) and not getattr(model, "backward", 0)


def unroll_rnn(subject: Subject, tokens: Tensor) -> Network:
    model, network = subject.model, Network(TIME)
    logits, seen = subject.trace(tokens, *model.activations)
    embedding = model.embedding.weight
    read = embedding[tokens[0]]
    one_hot = isinstance(model.embedding, OneHotEmbedding)
    name, formula = ("one-hot vector", "x_t = e_{w_t}") if one_hot else ("embedding", "x_t = E[w_t]")
    x = network.add("x", name, formula, "lookup", [], read, matrix=embedding)
    for number, layer in enumerate(model.stack.layers):
        first = dict(zip(model.stack.state_names, model.stack.initial[:, number]))
        unrolled = UnrolledLayer(network, layer, {name: part[0, :, number] for name, part in seen.items()}, first,
                                 read, x, superscript(number + 1) if len(model.stack.layers) > 1 else "")
        x = CELLS.get(layer.cell, _elman)(unrolled)
        read = unrolled.seen["hidden"]
    _output(network, model.embedding, x, read, logits[0])
    return network


@dataclass(frozen=True)
class UnrolledLayer:
    """One layer, and its activations over the tokens."""

    network: Network
    layer: RecurrentLayer
    seen: Mapping[str, Tensor]     # (T, H) hidden and cell, (T, G, H) gates
    first: Mapping[str, Tensor]    # (H,) hidden, and cell: the initial state
    read: Tensor                   # (T, E) what it reads
    x: str                         # the node of that
    mark: str                      # the number of the layer, if there are several

    @property
    def weights(self) -> Weights:
        return self.layer.weights()[0]

    def before(self, name: str) -> Tensor:
        """(T, H) the value before each token."""
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
                        letters=[f"W{low}", f"U{low}"], matrices=[W, U], bias=bias, **({"squash": squash, "sums": sums}
                        if squash != "identity" else {}), **facts)


def _elman(layer: UnrolledLayer) -> str:
    every = slice(len(layer.first["hidden"]))
    return layer.gate("h", "hidden vector", every, layer.layer.cell, layer.seen["hidden"], first=layer.first["hidden"])


def _gru(layer: UnrolledLayer) -> str:
    h, (r, z) = len(layer.first["hidden"]), layer.seen["gates"].unbind(1)
    reset = layer.gate("r", "reset gate", slice(0, h), "sigmoid", r)
    update = layer.gate("z", "update gate", slice(h, 2 * h), "sigmoid", z)
    rows, weights, before = slice(2 * h, 3 * h), layer.weights, Input("h" + layer.mark + ".0", "before")
    from_input = layer.read @ weights.U[rows].T + weights.b_U[rows]
    from_hidden = layer.before("hidden") @ weights.W[rows].T + weights.b_W[rows]
    u = layer.add("u", "input term", "u_t = U_n x_t + b_U", "linear", layer.x, values=from_input,
                  letters=["U_n"], matrices=[weights.U[rows]], bias=weights.b_U[rows])
    w = layer.add("w", "recurrent term", "w_t = W_n h_{t-1} + b_W", "linear", before, values=from_hidden,
                  letters=["W_n"], matrices=[weights.W[rows]], bias=weights.b_W[rows])
    n = layer.add("n", "candidate", "n_t = tanh(u_t + r_t ∗ w_t)", "each", u, reset, w,
                  values=torch.tanh(from_input + r * from_hidden), how="candidate")
    return layer.add("h", "hidden vector", "h_t = (1 − z_t) ∗ n_t + z_t ∗ h_{t-1}", "each", update, n, before,
                     values=layer.seen["hidden"], how="blend", first=layer.first["hidden"])


def _lstm(layer: UnrolledLayer) -> str:
    h = len(layer.first["hidden"])
    names = (("i", "input gate"), ("f", "forget gate"), ("C̃", "candidate"), ("o", "output gate"))
    i, f, candidate, o = (
        layer.gate(symbol, name, slice(place * h, (place + 1) * h), "tanh" if place == 2 else "sigmoid", gate)
        for place, ((symbol, name), gate) in enumerate(zip(names, layer.seen["gates"].unbind(1)))
    )
    before = Input("C" + layer.mark + ".0", "before")
    cell = layer.add("C", "cell", "C_t = f_t ∗ C_{t-1} + i_t ∗ C̃_t", "each", f, before, i, candidate,
                     values=layer.seen["cell"], how="cell", first=layer.first["cell"])
    return layer.add("h", "hidden vector", "h_t = o_t ∗ tanh(C_t)", "each", o, cell, values=layer.seen["hidden"],
                     how="shown", first=layer.first["hidden"])


CELLS = {"gru": _gru, "lstm": _lstm}     # any other is an Elman cell, named by its nonlinearity


def _output(network: Network, embedding: TokenEmbedding, h: str, hidden: Tensor, logits: Tensor) -> None:
    """From the last hidden vector to the softmax."""
    if embedding.project is not None:
        matrix = embedding.project.weight
        h = network.add("g", "projected", "g_t = P h_t", "linear", [h], hidden @ matrix.T, letters=["P"],
                        matrices=[matrix])
    symbol, letter = ("g", "E") if embedding.project is not None else ("h", "V")
    matrix = embedding.output_matrix
    y = network.add("y", "logits", f"y_t = {letter} {symbol}_t + b_y", "linear", [h], logits, letters=[letter],
                    matrices=[matrix], bias=embedding.bias, labels="vocab")
    network.add("p", "probabilities", "p_t = softmax(y_t)", "softmax", [y], logits.softmax(-1), labels="vocab")

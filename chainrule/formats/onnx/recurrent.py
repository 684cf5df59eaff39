"""ONNX graphs of models with a state of fixed size: rnn, gru and lstm, the feed-forward network, the HMM.

    input_ids (B, T), past.NAME  ->  logits (B, T, V), present.NAME

One call reads T tokens of B rows and returns the state after them, which the next call takes. The state of the
beginning of a text is all zeros, for every kind: where it is something else in the model, the graph adds it.

Shapes: B rows, T tokens, N = order - 1, L layers, H hidden units, S hidden states, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.formats.onnx.graph import ROWS, TOKENS, Graph
from chainrule.layers.embedding import OneHotEmbedding, TokenEmbedding
from chainrule.layers.recurrent import RecurrentLayer
from chainrule.model import BOUNDARY
from chainrule.models.feedforward import ACTIVATIONS, FeedForward
from chainrule.models.hmm.forward_backward import TINY
from chainrule.models.hmm.hmm import HMM
from chainrule.models.rnn import RecurrentModel

OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "tanh": ("RNN", {"activations": ["Tanh"]}),
    "relu": ("RNN", {"activations": ["Relu"]}),
    "sigmoid": ("RNN", {"activations": ["Sigmoid"]}),
    "identity": ("RNN", {"activations": ["Affine"], "activation_alpha": [1.0], "activation_beta": [0.0]}),
    "gru": ("GRU", {"linear_before_reset": 1}),
    "lstm": ("LSTM", {}),
}
GATES = {"gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}    # ONNX's order of the gates, as places in torch's order
UNIT = {"gelu": "Gelu", "tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid"}


def read_tokens(graph: Graph) -> str:
    return graph.input("input_ids", "int64", (ROWS, TOKENS))


def write_logits(graph: Graph, logits: str, vocab: int) -> None:
    graph.output("logits", logits, "float32", (ROWS, TOKENS, vocab))


def embed(graph: Graph, embedding: TokenEmbedding, tokens: str) -> str:
    """(B, T) -> (B, T, E)"""
    if isinstance(embedding, OneHotEmbedding):
        return graph.op("OneHot", tokens, graph.ints(len(embedding.weight)), graph.weight("off_on", torch.eye(2)[1]))
    return graph.op("Gather", graph.weight("embedding.weight", embedding.weight), tokens)


def output_logits(graph: Graph, embedding: TokenEmbedding, hidden: str) -> str:
    """(B, T, H) -> (B, T, V)"""
    if embedding.project is not None:
        hidden = graph.linear("embedding.project", embedding.project, hidden)
    if embedding.output is not None:
        logits = graph.linear("embedding.output", embedding.output, hidden)
    else:
        table = graph.weight("embedding.weight", embedding.weight)
        logits = graph.op("MatMul", hidden, graph.transpose(table, 1, 0))
    return logits if embedding.bias is None else graph.op("Add", logits, graph.weight("embedding.bias", embedding.bias))


# rnn, gru, lstm


def recurrent_graph(model: RecurrentModel) -> Graph:
    graph, stack = Graph("recurrent"), model.stack
    tokens, layers = read_tokens(graph), len(stack.layers)
    shape = (ROWS, layers, stack.width)
    offsets = {name: graph.weight(f"initial.{name}", first) for name, first in zip(stack.state_names, stack.initial)}
    past = {name: graph.op("Add", graph.input(f"past.{name}", "float32", shape), offset)
            for name, offset in offsets.items()}
    by_layer = {name: graph.ops("Split", layers, state, axis=1, num_outputs=layers) for name, state in past.items()}
    x = graph.transpose(embed(graph, model.embedding, tokens), 1, 0, 2)                       # (T, B, E)
    after: dict[str, list[str]] = {name: [] for name in past}
    for number, layer in enumerate(stack.layers):
        assert isinstance(layer, RecurrentLayer)
        before = [graph.transpose(states[number], 1, 0, 2) for states in by_layer.values()]   # (1, B, H) each
        x, *last = recurrent_layer(graph, number, layer, x, before)
        for name, state in zip(past, last):
            after[name].append(graph.transpose(state, 1, 0, 2))
    logits = output_logits(graph, model.embedding, graph.transpose(x, 1, 0, 2))
    write_logits(graph, logits, len(model.embeddings))
    for name, states in after.items():
        present = graph.op("Sub", graph.op("Concat", *states, axis=1), offsets[name])
        graph.output(f"present.{name}", present, "float32", shape)
    return graph


def recurrent_layer(graph: Graph, number: int, layer: RecurrentLayer, x: str, before: Sequence[str]) -> list[str]:
    """(T, B, D) and the state (1, B, H) -> (T, B, H), and the state after it."""
    [weights], name = layer.weights(), f"stack.layers.{number}"
    U, W, b_U, b_W = (reorder(part, layer.cell) for part in weights)
    matrices = (graph.weight(f"{name}.U", U[None]), graph.weight(f"{name}.W", W[None]),
                graph.weight(f"{name}.b", torch.cat([b_U, b_W])[None]))
    kind, attributes = OPERATORS[layer.cell]
    every, *last = graph.ops(kind, 1 + len(before), x, *matrices, "", *before, hidden_size=layer.hidden, **attributes)
    return [graph.op("Squeeze", every, graph.ints(1)), *last]


def reorder(stacked: Tensor, cell: str) -> Tensor:
    """(G·H, …): the gates in ONNX's order."""
    order = GATES.get(cell, (0,))
    parts = stacked.chunk(len(order))
    return torch.cat([parts[place] for place in order])


# Feed-forward


def feed_forward_graph(model: FeedForward) -> Graph:
    graph, window = Graph("feedforward"), model.receptive_field or 0
    tokens, shape = read_tokens(graph), (ROWS, window)
    past, count = graph.input("past.tokens", "int64", shape), graph.size(tokens, 1)
    history = graph.op("Concat", past, tokens, axis=1)                                        # (B, N + T)
    x = embed(graph, model.embedding, history)
    places = [graph.cut(x, graph.ints(place), graph.op("Add", count, graph.ints(place)), 1)
              for place in range(1, window + 1)]                                              # N of (B, T, E)
    h = joined = graph.op("Concat", *places, axis=-1) if window > 1 else places[0]            # (B, T, N·E)
    activation = next(name for name, function in ACTIVATIONS.items() if function is model.activation)
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, nn.Linear)
        h = graph.op(UNIT[activation], graph.linear(f"layers.{number}", layer, h))
    if model.direct:
        h = graph.op("Concat", h, joined, axis=-1)
    write_logits(graph, output_logits(graph, model.embedding, h), len(model.embeddings))
    present = graph.cut(history, count, graph.op("Add", count, graph.ints(window)), 1)
    graph.output("present.tokens", present, "int64", shape)
    return graph


# HMM


def hmm_graph(model: HMM) -> Graph:
    """The forward algorithm in float64. The belief of the beginning is π, and here it is given as zeros."""
    graph, (states, vocab) = Graph("hmm"), model.emission.shape
    tokens, shape = read_tokens(graph), (ROWS, states)
    given = graph.input("past.belief", "float64", shape)
    initial, zero = graph.weight("initial", model.initial), graph.weight("zero", torch.zeros((), dtype=torch.float64))
    total = graph.op("ReduceSum", given, graph.ints(1))
    belief = graph.op("Where", graph.op("Equal", total, zero), initial, given)
    emission = graph.weight("emission", model.emission)
    rows = graph.op("Gather", graph.transpose(emission, 1, 0), graph.transpose(tokens, 1, 0))        # (T, B, S)
    last, every = graph.ops("Scan", 2, belief, graph.transpose(tokens, 1, 0), rows,
                            body=hmm_step(graph, model, shape).subgraph(), num_scan_inputs=2)
    p = graph.op("MatMul", graph.transpose(every, 1, 0, 2), emission)                                # (B, T, V)
    logits = graph.op("Cast", graph.op("Log", p), to=graph.onnx.TensorProto.FLOAT)
    write_logits(graph, logits, vocab)
    graph.output("present.belief", last, "float64", shape)
    return graph


def hmm_step(around: Graph, model: HMM, shape: tuple[int | str, ...]) -> Graph:
    """One token: α ∝ b · belief, and the next belief is α a. A boundary begins a new text.

    A token that no state can emit is ignored, as in models/hmm/forward_backward.py.
    """
    step = Graph("forward")
    belief = step.input("belief", "float64", shape)
    token = step.input("token", "int64", (ROWS,))
    emitted = step.input("emitted", "float64", shape)
    tiny = around.weight("tiny", torch.tensor(TINY, dtype=torch.float64))
    joint = step.op("Mul", belief, emitted)
    scale = step.op("ReduceSum", joint, around.ints(1))                                              # (B, 1)
    alpha = step.op("Where", step.op("Less", scale, tiny), belief, step.op("Div", joint, scale))
    moved = step.op("MatMul", alpha, around.weight("transition", model.transition))
    ended = step.op("Unsqueeze", step.op("Equal", token, around.whole(BOUNDARY)), around.ints(1))
    after = step.op("Where", ended, around.weight("initial", model.initial), moved)
    for name in ("after", "belief_after"):
        step.output(name, after, "float64", shape)
    return step

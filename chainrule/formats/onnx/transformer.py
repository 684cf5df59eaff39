"""The ONNX graph of a GPT: keys and values of earlier tokens in, those of all tokens out.

    input_ids (B, T), attention_mask (B, P + T), position_ids (B, T), past_key_values.N.key and .value (B, G, P, d)
    -> logits (B, T, V), present.N.key and .value (B, G, P + T, d)

The names are those of optimum's exporter, which transformers.js and onnxruntime-genai know. The mask is 0 at padding,
on whichever side. A layer that sees few tokens has the keys of all of them here, and a mask.

Shapes: B rows, T tokens, P earlier tokens, C = P + T keys, V vocabulary, D width, H query heads, G key/value heads, d
numbers in a head, E experts, N = B · T.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.errors import UserError
from chainrule.formats.onnx.graph import ROWS, TOKENS, Graph
from chainrule.layers.attention import Attention
from chainrule.layers.blocks import Block, FeedForwardLayer
from chainrule.layers.experts import Experts
from chainrule.layers.positions import RelativeBias, alibi_slopes, frequencies, rope_frequencies
from chainrule.layers.transformer_settings import ROPE_THETA
from chainrule.models.gpt import GPT

EARLIER = "past_sequence_length"
EVERY = f"{EARLIER} + {TOKENS}"
MASKED = -1e9        # a score; with -∞ a row of padding alone would be 0/0


def gpt_graph(model: GPT) -> Graph:
    return GPTGraph(model).build()


class GPTGraph:
    def __init__(self, model: GPT):
        self.model, self.settings, self.graph = model, model.settings, Graph("gpt")
        if "compressed" in self.settings.attention:
            raise UserError("model.attention=compressed has no keys of single tokens, which the ONNX graph of a gpt "
                            "keeps; full, local and sliding can be exported.")

    def build(self) -> Graph:
        graph, settings, model = self.graph, self.settings, self.model
        tokens = graph.input("input_ids", "int64", (ROWS, TOKENS))
        mask = graph.input("attention_mask", "int64", (ROWS, EVERY))
        positions = graph.input("position_ids", "int64", (ROWS, TOKENS))
        names = [f"{layer}.{part}" for layer in range(settings.layers) for part in ("key", "value")]
        heads, size = settings.kv_heads, settings.head_size
        past = {name: graph.input(f"past_key_values.{name}", "float32", (ROWS, heads, EARLIER, size)) for name in names}
        self.masks(positions, mask)
        self.rope = self.rope_tables(positions) if settings.positions == "rotary" else None
        x, present = self.embed(tokens, positions), {}
        for number, block in enumerate(model.stack.blocks):
            assert isinstance(block, Block)
            kv = past[f"{number}.key"], past[f"{number}.value"]
            x, present[f"{number}.key"], present[f"{number}.value"] = self.block(number, block, x, *kv)
        x = self.norm("stack.norm", model.stack.norm, x)
        graph.output("logits", self.logits(x), "float32", (ROWS, TOKENS, len(model.embeddings)))
        for name in names:
            graph.output(f"present.{name}", present[name], "float32", (ROWS, heads, EVERY, size))
        return graph

    # The two ends

    def embed(self, tokens: str, positions: str) -> str:
        graph, table = self.graph, self.model.embedding
        x = graph.op("Gather", graph.weight("embedding.weight", self.model.embeddings), tokens)
        if table.positions is not None:
            vectors = graph.weight("embedding.positions", table.positions.weight)
            x = graph.op("Add", x, graph.op("Gather", vectors, positions))
        if self.settings.positions == "sinusoidal":
            x = graph.op("Mul", x, graph.number(math.sqrt(self.settings.width)))
            x = graph.op("Add", x, self.sinusoids(positions))
        return self.norm("embedding.norm", table.norm, x)

    def sinusoids(self, positions: str) -> str:
        """(B, T) -> (B, T, D): sin and cos in turn."""
        graph, width = self.graph, self.settings.width
        angle = self.angles(positions, frequencies(width, ROPE_THETA))
        pairs = [graph.op("Unsqueeze", graph.op(kind, angle), graph.ints(3)) for kind in ("Sin", "Cos")]
        joined = graph.reshape(graph.op("Concat", *pairs, axis=3), 0, 0, -1)
        return graph.cut(joined, graph.ints(0), graph.ints(width), 2)

    def logits(self, x: str) -> str:
        graph, cap = self.graph, self.settings.logit_softcap
        if self.model.output is None:
            matrix = graph.weight("embedding.weight", self.model.embeddings)
            logits = graph.op("MatMul", x, graph.transpose(matrix, 1, 0))
        else:
            logits = graph.linear("output", self.model.output, x)
        if cap is None:
            return logits
        return graph.op("Mul", graph.op("Tanh", graph.op("Div", logits, graph.number(cap))), graph.number(cap))

    # Positions and masks

    def angles(self, positions: str, turns: Tensor) -> str:
        """(B, T), (n,) -> (B, T, n)"""
        graph = self.graph
        numbers = graph.op("Cast", positions, to=graph.onnx.TensorProto.FLOAT)
        return graph.op("Mul", graph.op("Unsqueeze", numbers, graph.ints(2)), graph.weight("frequencies", turns))

    def rope_tables(self, positions: str) -> tuple[str, str]:
        """(B, T, 1, d) each: cos twice, and sin with its two signs."""
        graph, settings = self.graph, self.settings
        turns, temperature = rope_frequencies(settings.head_size, settings.rope_theta, settings.rope)
        angle = graph.op("Unsqueeze", self.angles(positions, turns), graph.ints(2))
        cos, sin = (graph.op("Mul", graph.op(kind, angle), graph.number(temperature)) for kind in ("Cos", "Sin"))
        return graph.op("Concat", cos, cos, axis=-1), graph.op("Concat", graph.op("Neg", sin), sin, axis=-1)

    def masks(self, positions: str, mask: str) -> None:
        """(B, 1, T, C) for each kind of attention: True where a query may attend to a key; and the positions' bias."""
        graph = self.graph
        keys = graph.op("Sub", graph.op("CumSum", mask, graph.whole(1)), graph.whole(1))     # (B, C): their positions
        query = graph.op("Unsqueeze", positions, graph.ints(1, 3))                           # (B, 1, T, 1)
        key = graph.op("Unsqueeze", keys, graph.ints(1, 2))                                  # (B, 1, 1, C)
        distance = graph.op("Sub", query, key)
        real = graph.op("Cast", graph.op("Unsqueeze", mask, graph.ints(1, 2)), to=graph.onnx.TensorProto.BOOL)
        past = graph.op("And", real, graph.op("GreaterOrEqual", distance, graph.whole(0)))
        self.allowed = {"full": past}
        if "sliding" in self.settings.attention:
            near = graph.op("Less", distance, graph.whole(self.settings.span("sliding")))
            self.allowed["sliding"] = graph.op("And", past, near)
        if "local" in self.settings.attention:
            size = graph.whole(self.settings.span("local"))
            same = graph.op("Equal", graph.op("Div", query, size), graph.op("Div", key, size))
            self.allowed["local"] = graph.op("And", past, same)
        self.bias = self.position_bias(distance)

    def position_bias(self, distance: str) -> str | None:
        """(B, 1, T, C) -> (B, H, T, C): what the positions add to the scores."""
        graph, bias = self.graph, self.model.stack.bias
        if self.settings.positions == "alibi":
            slopes = -torch.tensor(alibi_slopes(self.settings.heads))[:, None, None]
            far = graph.op("Cast", graph.op("Abs", distance), to=graph.onnx.TensorProto.FLOAT)
            return graph.op("Mul", far, graph.weight("slopes", slopes))
        if not isinstance(bias, RelativeBias):
            return None
        table = bias.weight[bias.bucket(torch.arange(bias.furthest + 1))]                    # all further ones share it
        place = graph.op("Clip", distance, graph.whole(0), graph.whole(bias.furthest))
        found = graph.op("Gather", graph.weight("stack.bias", table), graph.op("Squeeze", place, graph.ints(1)))
        return graph.transpose(found, 0, 3, 1, 2)

    # Blocks

    def block(self, number: int, block: Block, x: str, keys: str, values: str) -> tuple[str, str, str]:
        graph, name = self.graph, f"stack.blocks.{number}"
        if self.settings.norm_first:
            h = self.norm(f"{name}.attention_norm", block.attention_norm, x)
            h, keys, values = self.attention(f"{name}.attention", block.attention, h, keys, values)
            x = graph.op("Add", x, h)
            h = self.norm(f"{name}.feed_forward_norm", block.feed_forward_norm, x)
            return graph.op("Add", x, self.feed(f"{name}.feed_forward", block.feed_forward, h)), keys, values
        h, keys, values = self.attention(f"{name}.attention", block.attention, x, keys, values)
        x = self.norm(f"{name}.attention_norm", block.attention_norm, graph.op("Add", x, h))
        h = self.feed(f"{name}.feed_forward", block.feed_forward, x)
        return self.norm(f"{name}.feed_forward_norm", block.feed_forward_norm, graph.op("Add", x, h)), keys, values

    def norm(self, name: str, norm: Any, x: str) -> str:
        graph = self.graph
        if isinstance(norm, nn.Identity):
            return x
        scale = norm.weight
        if isinstance(norm, nn.LayerNorm):
            scale = torch.ones(norm.normalized_shape) if scale is None else scale
            bias = [] if norm.bias is None else [graph.weight(f"{name}.bias", norm.bias)]
            return graph.op("LayerNormalization", x, graph.weight(f"{name}.weight", scale), *bias, epsilon=norm.eps)
        mean = graph.op("ReduceMean", graph.op("Mul", x, x), graph.ints(-1))
        normed = graph.op("Div", x, graph.op("Sqrt", graph.op("Add", mean, graph.number(norm.eps))))
        return normed if scale is None else graph.op("Mul", normed, graph.weight(f"{name}.weight", scale))

    def attention(self, name: str, layer: Attention, x: str, keys: str, values: str) -> tuple[str, str, str]:
        """(B, T, D), (B, G, P, d), (B, G, P, d) -> (B, T, D), (B, G, C, d), (B, G, C, d)"""
        graph, heads, groups, size = self.graph, layer.heads, layer.kv_heads, layer.head_size
        query, key, value = self.heads(name, layer, x)
        keys, values = (graph.op("Concat", *pair, axis=2) for pair in ((keys, key), (values, value)))
        scale = 1 / math.sqrt(size) if layer.scale is None else layer.scale
        query = graph.reshape(graph.op("Mul", query, graph.number(scale)), 0, groups, -1, size)    # (B, G, H/G · T, d)
        scores = graph.reshape(graph.op("MatMul", query, graph.transpose(keys, 0, 1, 3, 2)), 0, heads, -1, 0)
        if self.bias is not None:
            scores = graph.op("Add", scores, self.bias)                                            # (B, H, T, C)
        scores = graph.op("Where", self.allowed[layer.kind], scores, graph.number(MASKED))
        pattern = graph.reshape(graph.op("Softmax", scores, axis=-1), 0, groups, -1, 0)
        mixed = graph.reshape(graph.op("MatMul", pattern, values), 0, heads, -1, size)             # (B, H, T, d)
        mixed = graph.reshape(graph.transpose(mixed, 0, 2, 1, 3), 0, 0, heads * size)
        if isinstance(layer.out, nn.Linear):
            mixed = graph.linear(f"{name}.out", layer.out, mixed)
        return mixed, keys, values

    def heads(self, name: str, layer: Attention, x: str) -> list[str]:
        """(B, T, D) -> queries (B, H, T, d), keys and values (B, G, T, d), with QK norm and RoPE."""
        graph, parts = self.graph, [x, x, x]
        if layer.project is not None:
            packed = graph.linear(f"{name}.project", layer.project, x)
            parts = graph.ops("Split", 3, packed, graph.ints(*layer.parts), axis=2)
        for place, part in enumerate(parts):
            part = graph.reshape(part, 0, 0, -1, layer.head_size)
            if place < 2 and layer.norms:
                part = self.norm(f"{name}.norms.{place}", layer.norms[place], part)
            if place < 2 and self.rope is not None:
                part = self.rotate(part, *self.rope)
            parts[place] = graph.transpose(part, 0, 2, 1, 3)
        return parts

    def rotate(self, x: str, cos: str, sin: str) -> str:
        """(B, T, H, d): RoPE, as in layers/positions.py."""
        graph = self.graph
        first, second = graph.ops("Split", 2, x, axis=3, num_outputs=2)
        swapped = graph.op("Concat", second, first, axis=3)
        return graph.op("Add", graph.op("Mul", x, cos), graph.op("Mul", swapped, sin))

    # The feed-forward layer

    def feed(self, name: str, layer: FeedForwardLayer | Experts, x: str) -> str:
        if isinstance(layer, Experts):
            return self.experts(name, layer, x)
        return self.graph.linear(f"{name}.out", layer.out, self.activate(self.graph.linear(f"{name}.up", layer.up, x)))

    def activate(self, x: str) -> str:
        graph, kind = self.graph, self.settings.activation
        if self.settings.gated:
            gate, value = graph.ops("Split", 2, x, axis=-1, num_outputs=2)
            silu = graph.op("Mul", gate, graph.op("Sigmoid", gate)) if kind == "swiglu" else None
            return graph.op("Mul", silu or graph.op("Gelu", gate, approximate="tanh"), value)
        if kind.startswith("gelu"):
            return graph.op("Gelu", x, approximate="tanh" if kind == "gelu-tanh" else "none")
        x = graph.op("Relu", x)
        return graph.op("Mul", x, x) if kind == "relu2" else x

    def experts(self, name: str, layer: Experts, x: str) -> str:
        """Every expert computes every token, and the router's weights of those that it did not choose are 0."""
        graph, (active, width) = self.graph, (layer.active, self.settings.width)
        flat = graph.reshape(x, -1, width)                                                         # (N, D)
        p = graph.op("Softmax", graph.linear(f"{name}.router", layer.router, flat), axis=-1)       # (N, E)
        best, chosen = graph.ops("TopK", 2, p, graph.ints(active), axis=-1)
        if self.settings.renormalise:
            best = graph.op("Div", best, graph.op("ReduceSum", best, graph.ints(-1)))
        weights = graph.op("ScatterElements", graph.op("Mul", p, graph.number(0.0)), chosen, best, axis=1)
        hidden = self.activate(graph.op("MatMul", flat, graph.weight(f"{name}.up", layer.up.weight.mT)))
        every = graph.op("MatMul", hidden, graph.weight(f"{name}.out", layer.out.weight.mT))       # (E, N, D)
        weights = graph.op("Unsqueeze", graph.transpose(weights, 1, 0), graph.ints(2))             # (E, N, 1)
        mixed = graph.op("ReduceSum", graph.op("Mul", every, weights), graph.ints(0), keepdims=0)
        out = graph.op("Reshape", mixed, graph.op("Shape", x))
        if layer.shared is None:
            return out
        assert isinstance(layer.shared, FeedForwardLayer)
        return graph.op("Add", out, self.feed(f"{name}.shared", layer.shared, x))

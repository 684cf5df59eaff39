"""A Transformer unrolled in depth, with every number: embedding, attention, residual stream, feed-forward, softmax.

The model's own layers are called one after another, and each result becomes a node of the network that is drawn.

Shapes: T tokens, D width, H query heads, G key/value heads, d numbers in a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.inference.forward import eval_mode
from chainrule.layers.attention import Attention
from chainrule.layers.blocks import Block, FeedForwardLayer, PostNormBlock, TransformerStack
from chainrule.layers.positions import apply_rope, rope_tables, sinusoids
from chainrule.model import Model
from chainrule.viewer.network import DEPTH, Input, Network, superscript
from chainrule.viewer.subject import Subject

Activation: TypeAlias = tuple[str, Callable[[Tensor], Tensor]]    # its name on the page, and the function


GATING = {"swiglu": "g_t σ(g_t) ∗ u_t", "geglu": "gelu(g_t) ∗ u_t"}


def is_transformer(model: Model) -> bool:
    """Whether it is a stack of causal blocks with attention, one key for each token, and a feed-forward layer each."""
    stack = getattr(model, "stack", None)
    if not isinstance(stack, TransformerStack) or "compressed" in stack.settings.attention:
        return False
    return stack.causal and stack.sublayers == 2 and not stack.settings.experts


def unroll_transformer(subject: Subject, tokens: Tensor) -> Network:
    with torch.no_grad(), eval_mode(subject.model):
        unrolled = UnrolledTransformer(subject.model, tokens[0])
        unrolled.output(unrolled.stack(unrolled.embed()))
    return unrolled.network


@dataclass(frozen=True)
class Node:
    """A node of the drawing, with its vectors."""

    id: str
    symbol: str
    x: Tensor     # (T, N)


class UnrolledTransformer:
    """Adds a node for each vector that the model computes, in the same order."""

    def __init__(self, model: Any, tokens: Tensor):
        self.model, self.tokens = model, tokens
        self.settings, self.network = model.settings, Network(DEPTH)
        self.positions = torch.arange(len(tokens), device=tokens.device)

    def add(self, symbol: str, name: str, formula: str, rule: str, *inputs: Node, x: Tensor, **facts: Any) -> Node:
        """`formula`: the right side of the equation."""
        whole = f"{symbol}_t = {formula}"
        return Node(self.network.add(symbol, name, whole, rule, [node.id for node in inputs], x, **facts), symbol, x)

    def embed(self) -> Node:
        embedding, settings = self.model.embedding, self.settings
        words = embedding.tokens.weight
        x = self.add("e", "token embeddings", "E[w_t]", "lookup", x=words[self.tokens], matrix=words)
        if settings.positions == "sinusoidal":
            vectors = sinusoids(self.positions, settings.width)
            x = self.add_positions(x, vectors, "sines and cosines", math.sqrt(settings.width))
        if embedding.positions is not None:
            x = self.add_positions(x, embedding.positions(self.positions), "position embeddings", 1.0)
        return self.norm(x, embedding.norm, "x", "normed")

    def add_positions(self, node: Node, vectors: Tensor, name: str, factor: float) -> Node:
        position = self.add("pos", name, "the vector of position t", "given", x=vectors)
        self.network.below()
        scaled = "" if factor == 1 else "√D · "
        return self.add("x", "token and position", f"{scaled}e_t + pos_t", "each", node, position,
                        x=node.x * factor + vectors, how="add", factor=factor)

    def stack(self, x: Node) -> Node:
        blocks = self.model.stack.blocks
        for number, block in enumerate(blocks, 1):
            mark = f" of layer {number}" if len(blocks) > 1 else ""
            x = self.block(block, x, mark)
        return self.norm(x, self.model.stack.norm, "n", "normed")

    def block(self, block: Block, x: Node, mark: str) -> Node:
        delta = self.attend(block.attention, self.pre_norm(block, block.attention_norm, x, mark), mark)
        x = self.residual(block, block.attention_norm, x, delta, mark)
        self.network.below()
        delta = self.feed_forward(block.feed_forward, self.pre_norm(block, block.feed_forward_norm, x, mark), mark)
        self.network.below()
        return self.residual(block, block.feed_forward_norm, x, delta, mark)

    def pre_norm(self, block: Block, norm: nn.Module, x: Node, mark: str) -> Node:
        return x if isinstance(block, PostNormBlock) else self.norm(x, norm, "n", f"normed{mark}")

    def residual(self, block: Block, norm: nn.Module, x: Node, delta: Node, mark: str) -> Node:
        total = self.add("x", f"residual{mark}", f"x_t + {delta.symbol}_t", "each", x, delta, x=x.x + delta.x,
                         how="add", factor=1.0)
        return self.norm(total, norm, "x", f"normed{mark}") if isinstance(block, PostNormBlock) else total

    def norm(self, node: Node, norm: nn.Module, symbol: str, name: str) -> Node:
        if isinstance(norm, nn.Identity):
            return node
        gain, bias, x = norm.weight, getattr(norm, "bias", None), f"{node.symbol}_t"
        layer = isinstance(norm, nn.LayerNorm)
        formula = f"({x} − μ) / σ" if layer else f"{x} / √(mean of {x}²)"
        formula += "".join(part for part, there in ((" ⊙ γ", gain), (" + β", bias)) if there is not None)
        return self.add(symbol, name, formula, "norm", node, x=norm(node.x), how="layer" if layer else "rms",
                        epsilon=self.settings.epsilon, gain=gain, bias=bias)

    def linear(
        self, node: Node, matrix: Tensor, bias: Tensor | None, symbol: str, name: str, letter: str,
        activation: Activation | None = None, labels: str | None = None,
    ) -> Node:
        x, sums = functional.linear(node.x, matrix, bias), None
        formula = f"{letter} {node.symbol}_t" + ("" if bias is None else " + b")
        if activation is not None:
            formula, sums, x = f"{activation[0]}({formula})", x, activation[1](x)
        return self.add(symbol, name, formula, "linear", node, x=x, letters=[letter], matrices=[matrix], bias=bias,
                        squash=activation and activation[0], sums=sums, labels=labels)

    # Attention

    def attend(self, attention: Attention, node: Node, mark: str) -> Node:
        self.network.below()
        heads, groups = attention.heads, attention.kv_heads
        queries = [self.project(attention, node, 0, head, mark) for head in range(heads)]
        keys = [self.project(attention, node, 1, group, mark) for group in range(groups)]
        values = [self.project(attention, node, 2, group, mark) for group in range(groups)]
        mixed = []
        for head, query in enumerate(queries):
            group = head * groups // heads
            mixed.append(self.mix(attention, query, keys[group], values[group], head, mark))
        joined, out = self.concatenate(mixed), attention.out
        if not isinstance(out, nn.Linear):
            return joined
        self.network.below()
        return self.linear(joined, out.weight, out.bias, "o", f"attention output{mark}", "W_Oᵀ")

    def project(self, attention: Attention, node: Node, which: int, head: int, mark: str) -> Node:
        """Queries, keys or values of one head."""
        symbol, name, letter = (("q", "queries", "W_Qᵀ"), ("k", "keys", "W_Kᵀ"), ("v", "values", "W_Vᵀ"))[which]
        letter = "I" if attention.project is None else letter
        several = (attention.heads, attention.kv_heads, attention.kv_heads)[which] > 1
        if several:
            symbol, name = symbol + superscript(head + 1), f"{name} of head {head + 1}"
        name += mark
        part = self.linear(node, *self.projection(attention, which, head), symbol, name, letter)
        if which < 2 and len(attention.norms):
            part = self.norm(part, attention.norms[which], symbol, f"{name}, normed")
        return self.rotate(part, name) if which < 2 and self.settings.positions == "rotary" else part

    def projection(self, attention: Attention, which: int, head: int) -> tuple[Tensor, Tensor | None]:
        """The matrix and bias of queries, keys or values of one head; without them, rows of the identity: x itself."""
        first, size = head * attention.head_size, attention.head_size
        if attention.project is None:
            return torch.eye(self.settings.width)[first : first + size].to(self.model.output_matrix), None
        rows = slice(sum(attention.parts[:which]) + first, sum(attention.parts[:which]) + first + size)
        bias = attention.project.bias
        return attention.project.weight[rows], None if bias is None else bias[rows]

    def rotate(self, node: Node, name: str) -> Node:
        settings = self.settings
        tables = rope_tables(self.positions[None], settings.head_size, settings.rope_theta, scaling=settings.rope)
        x = apply_rope(node.x[None, :, None], tables)[0, :, 0]
        half = self.settings.head_size // 2
        cos, sin = tables[0][0, :, 0, :half], tables[1][0, :, 0, half:]
        formula = f"RoPE({node.symbol}_t, t)"
        return self.add(node.symbol, f"{name}, with RoPE", formula, "rotate", node, x=x, cos=cos, sin=sin)

    def mix(self, attention: Attention, query: Node, key: Node, value: Node, head: int, mark: str) -> Node:
        """softmax(q k / √d + M) v"""
        self.network.below()
        scores, sees, added = self.scores(attention, query, key, head)
        which, bias = superscript(head + 1) * (self.settings.heads > 1), "" if added is None else " + r_{t−j}"
        scale = " / √d_k" if attention.scale is None else ""
        formula = f"s_{{t,j}} = k_jᵀ q_t{scale}{bias}, and −∞ where the causal mask hides j from t"
        inputs: list[Input | str] = [query.id, Input(key.id, "all")]
        s = self.network.add(f"s{which}", f"scores{mark}", formula, "scores", inputs, scores, labels="tokens",
                             size=self.settings.head_size if scale else 1, sees=sees, added=added)
        pattern = scores.softmax(-1)
        a = self.network.add(f"a{which}", f"attention weights{mark}", "a_t = softmax(s_t)", "softmax", [s], pattern,
                             labels="tokens")
        x, symbol = pattern @ value.x, f"x′{which}"
        formula = f"{symbol}_t = Σ_{{j≤t}} a_{{t,j}} {value.symbol}_j"
        mixed = self.network.add(symbol, f"mixed values{mark}", formula, "mix", [a, Input(value.id, "all")], x)
        return Node(mixed, symbol, x)

    def scores(
        self, attention: Attention, query: Node, key: Node, head: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(T, T) each: the scores, -∞ where j is masked; whether it is visible; and the relative position bias."""
        scores = query.x @ key.x.T * (attention.scale or 1 / math.sqrt(self.settings.head_size))
        layout = self.model.stack.layout(self.positions[None])
        mask = attention.mask(layout, whole=True).as_tensor(len(self.positions), self.positions.device)
        assert mask is not None                                    # a text is causal
        if mask.dtype == torch.bool:
            sees = mask.expand(1, 1, *scores.shape)[0, 0] if mask.dim() == 4 else mask
            return scores.masked_fill(~sees, -math.inf), sees.int(), None
        added = mask[0, head]
        return scores + added, added.isfinite().int(), added.nan_to_num(neginf=0.0)

    def concatenate(self, mixed: list[Node]) -> Node:
        if len(mixed) == 1:
            return mixed[0]
        self.network.below()
        return self.add("x′", "heads concatenated", ", ".join(f"{one.symbol}_t" for one in mixed), "join", *mixed,
                        x=torch.cat([one.x for one in mixed], -1))

    # The feed-forward layer and the output

    def feed_forward(self, layer: nn.Module, node: Node, mark: str) -> Node:
        assert isinstance(layer, FeedForwardLayer)             # `is_transformer` refuses experts
        weight, bias = layer.up.weight, layer.up.bias
        if len(layer.up.parts) == 1:
            activation = self.settings.activation, layer.activation
            inner = self.linear(node, weight, bias, "f", f"neurons{mark}", "W_1", activation)
        else:
            gate, value = (
                self.linear(node, *part, symbol, f"{name}{mark}", letter)
                for part, symbol, name, letter in zip(
                    zip(weight.chunk(2), (None, None) if bias is None else bias.chunk(2)),
                    "gu", ("gates of the neurons", "neurons before gating"), ("W_g", "W_1"))
            )
            kind = self.settings.activation
            inner = self.add("f", f"neurons{mark}", GATING[kind], "each", gate, value, how=kind,
                             x=layer.activation(torch.cat([gate.x, value.x], -1)))
        return self.linear(inner, layer.out.weight, layer.out.bias, "d", f"feed-forward output{mark}", "W_2")

    def output(self, top: Node) -> None:
        self.network.below()
        letter, cap = "W" if self.model.output is not None else "E", self.settings.logit_softcap
        y = self.linear(top, self.model.output_matrix, None, "y", "logits", letter, labels="vocab")
        if cap is not None:
            y = self.add("y", "soft-capped logits", "c tanh(y_t / c)", "each", y, x=cap * torch.tanh(y.x / cap),
                         how="cap", factor=cap, labels="vocab")
        self.add("p", "probabilities", "softmax(y_t)", "softmax", y, x=y.x.softmax(-1), labels="vocab")

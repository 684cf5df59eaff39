"""A Transformer unrolled in depth: from the vectors of its tokens, layer by layer, to the die, with every number.

The model's own parts are called one after another, so what is shown is what they say.

Shapes: T tokens, D width, H heads of queries, G heads of keys, d numbers in a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from chainrule.inference.forward import eval_mode
from chainrule.layers.attention import Attention, apply_rope, rope_tables
from chainrule.layers.blocks import Block, FeedForwardLayer, PostNormBlock, TransformerStack
from chainrule.layers.positions import sinusoids
from chainrule.viewer.network import DEPTH, Input, Network, raised
from chainrule.viewer.subject import Subject

Squash: TypeAlias = tuple[str, Callable[[Tensor], Tensor]]


def suits(model: Any) -> bool:
    stack = getattr(model, "stack", None)
    return isinstance(stack, TransformerStack) and stack.causal and stack.sublayers == 2


def unroll(subject: Subject, tokens: Tensor) -> Network:
    with torch.no_grad(), eval_mode(subject.model):
        walk = Walk(subject.model, tokens[0])
        walk.answer(walk.climb(walk.embed()))
    return walk.network


@dataclass(frozen=True)
class Made:
    """The vectors of a node."""

    node: str
    symbol: str
    x: Tensor     # (T, N)


class Walk:
    """Makes nodes, one after another, as the model makes vectors."""

    def __init__(self, model: Any, tokens: Tensor):
        self.model, self.tokens = model, tokens
        self.settings, self.network = model.settings, Network(DEPTH)
        self.places = torch.arange(len(tokens), device=tokens.device)

    def add(self, symbol: str, name: str, formula: str, rule: str, *made: Made, x: Tensor, **facts: Any) -> Made:
        """`formula`: behind the sign of equality."""
        whole = f"{symbol}_t = {formula}"
        return Made(self.network.add(symbol, name, whole, rule, [one.node for one in made], x, **facts), symbol, x)

    def embed(self) -> Made:
        embedding, settings = self.model.embedding, self.settings
        words = embedding.words.weight
        x = self.add("e", "vectors of the tokens", "E[w_t]", "lookup", x=words[self.tokens], matrix=words)
        if settings.positions == "sinusoidal":
            x = self.placed(x, sinusoids(self.places, settings.width), "sines and cosines", math.sqrt(settings.width))
        if embedding.positions is not None:
            x = self.placed(x, embedding.positions(self.places), "vectors of the places", 1.0)
        return self.norm(x, embedding.norm, "x", "normed")

    def placed(self, made: Made, where: Tensor, name: str, factor: float) -> Made:
        place = self.add("pos", name, "where token t stands", "given", x=where)
        self.network.below()
        scaled = "" if factor == 1 else "√D · "
        return self.add("x", "token and place", f"{scaled}e_t + pos_t", "each", made, place, x=made.x * factor + where,
                        how="add", factor=factor)

    def climb(self, x: Made) -> Made:
        blocks = self.model.stack.blocks
        for number, block in enumerate(blocks, 1):
            mark = f" of layer {number}" if len(blocks) > 1 else ""
            x = self.block(block, x, mark)
        return self.norm(x, self.model.stack.norm, "n", "normed")

    def block(self, block: Block, x: Made, mark: str) -> Made:
        found = self.attend(block.attention, self.before(block, block.attention_norm, x, mark), mark)
        x = self.after(block, block.attention_norm, x, found, mark)
        self.network.below()
        found = self.feed(block.feed_forward, self.before(block, block.feed_forward_norm, x, mark), mark)
        self.network.below()
        return self.after(block, block.feed_forward_norm, x, found, mark)

    def before(self, block: Block, norm: nn.Module, x: Made, mark: str) -> Made:
        return x if isinstance(block, PostNormBlock) else self.norm(x, norm, "n", f"normed{mark}")

    def after(self, block: Block, norm: nn.Module, x: Made, found: Made, mark: str) -> Made:
        made = self.add("x", f"residual{mark}", f"x_t + {found.symbol}_t", "each", x, found, x=x.x + found.x, how="add",
                        factor=1.0)
        return self.norm(made, norm, "x", f"normed{mark}") if isinstance(block, PostNormBlock) else made

    def norm(self, made: Made, norm: nn.Module, symbol: str, name: str) -> Made:
        if isinstance(norm, nn.Identity):
            return made
        gain, bias, x = norm.weight, getattr(norm, "bias", None), f"{made.symbol}_t"
        layer = isinstance(norm, nn.LayerNorm)
        formula = f"({x} − μ) / σ" if layer else f"{x} / √(mean of {x}²)"
        formula += "".join(part for part, there in ((" ⊙ γ", gain), (" + β", bias)) if there is not None)
        return self.add(symbol, name, formula, "norm", made, x=norm(made.x), how="layer" if layer else "rms",
                        epsilon=self.settings.epsilon, gain=gain, bias=bias)

    def map(
        self, made: Made, matrix: Tensor, bias: Tensor | None, symbol: str, name: str, letter: str,
        squash: Squash | None = None, labels: str | None = None,
    ) -> Made:
        x, sums = linear(made.x, matrix, bias), None
        formula = f"{letter} {made.symbol}_t" + ("" if bias is None else " + b")
        if squash is not None:
            formula, sums, x = f"{squash[0]}({formula})", x, squash[1](x)
        return self.add(symbol, name, formula, "linear", made, x=x, letters=[letter], matrices=[matrix], bias=bias,
                        squash=squash and squash[0], sums=sums, labels=labels)

    # Attention

    def attend(self, attention: Attention, made: Made, mark: str) -> Made:
        self.network.below()
        heads, groups = attention.heads, attention.kv_heads
        queries = [self.asking(attention, made, 0, head, mark) for head in range(heads)]
        keys = [self.asking(attention, made, 1, group, mark) for group in range(groups)]
        values = [self.asking(attention, made, 2, group, mark) for group in range(groups)]
        mixed = []
        for head, query in enumerate(queries):
            group = head * groups // heads
            mixed.append(self.look(query, keys[group], values[group], head, mark))
        joined, out = self.join(mixed), attention.out
        self.network.below()
        return self.map(joined, out.weight, out.bias, "o", f"what attention adds{mark}", "W_Oᵀ")

    def asking(self, attention: Attention, made: Made, which: int, head: int, mark: str) -> Made:
        """Queries, keys or values of one head."""
        symbol, name, letter = (("q", "queries", "W_Qᵀ"), ("k", "keys", "W_Kᵀ"), ("v", "values", "W_Vᵀ"))[which]
        several = (attention.heads, attention.kv_heads, attention.kv_heads)[which] > 1
        symbol, name = symbol + raised(head + 1) * several, f"{name}{f' of head {head + 1}' if several else ''}{mark}"
        first = sum(attention.project.parts[:which]) + head * attention.head_size
        rows = slice(first, first + attention.head_size)
        bias = None if attention.project.bias is None else attention.project.bias[rows]
        part = self.map(made, attention.project.weight[rows], bias, symbol, name, letter)
        if which < 2 and len(attention.norms):
            part = self.norm(part, attention.norms[which], symbol, f"{name}, normed")
        return self.turn(part, name) if which < 2 and self.settings.positions == "rotary" else part

    def turn(self, made: Made, name: str) -> Made:
        spin = rope_tables(self.places[None], self.settings.head_size, self.settings.rope_theta)
        x = apply_rope(made.x[None, :, None], spin)[0, :, 0]
        half = self.settings.head_size // 2
        cos, sin = spin[0][0, :, 0, :half], spin[1][0, :, 0, half:]
        formula = f"{made.symbol}_t turned by its place"
        return self.add(made.symbol, f"{name}, turned", formula, "turn", made, x=x, cos=cos, sin=sin)

    def look(self, query: Made, key: Made, value: Made, head: int, mark: str) -> Made:
        """softmax(q k / √d + M) v"""
        self.network.below()
        scores, sees, added = self.scores(query, key, head)
        which, bias = raised(head + 1) * (self.settings.heads > 1), "" if added is None else " + r_{t−j}"
        formula = f"s_{{t,j}} = k_jᵀ q_t / √d_k{bias}, and −∞ where t does not see j"
        asked: list[Input | str] = [query.node, Input(key.node, "all")]
        s = self.network.add(f"s{which}", f"scores{mark}", formula, "scores", asked, scores, labels="tokens",
                             size=self.settings.head_size, sees=sees, added=added)
        pattern = scores.softmax(-1)
        a = self.network.add(f"a{which}", f"attention{mark}", "a_t = softmax(s_t)", "softmax", [s], pattern,
                             labels="tokens")
        x, symbol = pattern @ value.x, f"x′{which}"
        formula = f"{symbol}_t = Σ_{{j≤t}} a_{{t,j}} {value.symbol}_j"
        mixed = self.network.add(symbol, f"mixture{mark}", formula, "mix", [a, Input(value.node, "all")], x)
        return Made(mixed, symbol, x)

    def scores(self, query: Made, key: Made, head: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """(T, T) each: the scores, -∞ where t may not see j; whether it may; and what relative places add."""
        scores = query.x @ key.x.T / math.sqrt(self.settings.head_size)
        mask = self.model.stack.mask(self.places[None]).as_tensor(len(self.places), self.places.device)
        if mask.dtype == torch.bool:
            sees = mask.expand(1, 1, *scores.shape)[0, 0] if mask.dim() == 4 else mask
            return scores.masked_fill(~sees, -math.inf), sees.int(), None
        added = mask[0, head]
        return scores + added, added.isfinite().int(), added.nan_to_num(neginf=0.0)

    def join(self, mixed: list[Made]) -> Made:
        if len(mixed) == 1:
            return mixed[0]
        self.network.below()
        return self.add("x′", "all heads", ", ".join(f"{one.symbol}_t" for one in mixed), "join", *mixed,
                        x=torch.cat([one.x for one in mixed], -1))

    # What each token does by itself

    def feed(self, feed: FeedForwardLayer, made: Made, mark: str) -> Made:
        weight, bias = feed.up.weight, feed.up.bias
        if len(feed.up.parts) == 1:
            squash = self.settings.activation, feed.activation
            inner = self.map(made, weight, bias, "f", f"neurons{mark}", "W_1", squash)
        else:
            gate, value = (
                self.map(made, *part, symbol, f"{name}{mark}", letter)
                for part, symbol, name, letter in zip(
                    zip(weight.chunk(2), (None, None) if bias is None else bias.chunk(2)),
                    "gu", ("gates of the neurons", "neurons before their gates"), ("W_g", "W_1"))
            )
            inner = self.add("f", f"neurons{mark}", "g_t σ(g_t) ∗ u_t", "each", gate, value, how="swiglu",
                             x=feed.activation(torch.cat([gate.x, value.x], -1)))
        return self.map(inner, feed.out.weight, feed.out.bias, "d", f"what the neurons add{mark}", "W_2")

    def answer(self, top: Made) -> None:
        self.network.below()
        letter, cap = "W" if self.model.output is not None else "E", self.settings.logit_softcap
        y = self.map(top, self.model.output_matrix, None, "y", "logits", letter, labels="vocab")
        if cap is not None:
            y = self.add("y", "logits, capped", "c tanh(y_t / c)", "each", y, x=cap * torch.tanh(y.x / cap), how="cap",
                         factor=cap, labels="vocab")
        self.add("p", "the die", "softmax(y_t)", "softmax", y, x=y.x.softmax(-1), labels="vocab")
